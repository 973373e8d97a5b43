/* Where the last record of each key is, compiled: the twin of offset_map.py, which says what each method means.
 *
 * An open table of (128 bits of a keyed hash of the key, offset). Of two keys of one hash one would vanish: whoever
 * picks keys does not know the map's secret, so that only chance finds such a pair, among 2^64 keys. The hash is
 * SipHash-2-4 with 128 bits (Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012).
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_batches.h"
#include "_reading.h"

typedef struct {
    uint64_t high, low;
    int64_t after; /* the offset and 1: 0 says that nothing is here */
} Slot;

enum { SLOTS_MIN = 64, LOAD_PERCENT = 85 };

typedef struct {
    PyObject_HEAD
    Slot *table;
    size_t slots, slots_max, used, keys_max;
    uint64_t secret[2];
} OffsetMap;

/* ------------------------------------------------------------------ the hash */

static inline uint64_t
rotated(uint64_t value, int by)
{
    return value << by | value >> (64 - by);
}

static inline void
sip_rounds(uint64_t v[4], int count)
{
    while (count-- > 0) {
        v[0] += v[1];
        v[1] = rotated(v[1], 13) ^ v[0];
        v[0] = rotated(v[0], 32);
        v[2] += v[3];
        v[3] = rotated(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotated(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotated(v[1], 17) ^ v[2];
        v[2] = rotated(v[2], 32);
    }
}

static inline uint64_t
little_endian(const unsigned char *data, Py_ssize_t bytes)
{
    uint64_t value = 0;
    for (Py_ssize_t i = 0; i < bytes; i++) {
        value |= (uint64_t)data[i] << (8 * i);
    }
    return value;
}

static void
hash_key(const uint64_t secret[2], const unsigned char *key, Py_ssize_t size, uint64_t hash[2])
{
    uint64_t v[4] = {
        secret[0] ^ 0x736f6d6570736575u,
        secret[1] ^ 0x646f72616e646f6du ^ 0xee,
        secret[0] ^ 0x6c7967656e657261u,
        secret[1] ^ 0x7465646279746573u,
    };
    Py_ssize_t whole = size - size % 8;
    for (Py_ssize_t at = 0; at <= whole; at += 8) {
        uint64_t word = at < whole ? little_endian(key + at, 8)
                                   : little_endian(key + whole, size - whole) | (uint64_t)size << 56;
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    hash[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    hash[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ------------------------------------------------------------------ the table */

/* The slot of this hash, or the empty one where it belongs: there is always one. */
static Slot *
find(Slot *table, size_t slots, const uint64_t hash[2])
{
    size_t at = (size_t)(((unsigned __int128)hash[0] * slots) >> 64);
    while (table[at].after && (table[at].high != hash[0] || table[at].low != hash[1])) {
        at = at + 1 == slots ? 0 : at + 1;
    }
    return table + at;
}

/* Twice the slots, or as many as there may be; both tables are there while it grows. */
static int
grow(OffsetMap *self)
{
    size_t slots = self->slots * 2 < self->slots_max / 2 ? self->slots * 2 : self->slots_max;
    Slot *table = PyMem_RawCalloc(slots, sizeof(Slot));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t at = 0; at < self->slots; at++) {
        const Slot *slot = self->table + at;
        if (slot->after) {
            const uint64_t hash[2] = {slot->high, slot->low};
            *find(table, slots, hash) = *slot;
        }
    }
    PyMem_RawFree(self->table);
    self->table = table;
    self->slots = slots;
    return 0;
}

static int
put_key(OffsetMap *self, const unsigned char *key, Py_ssize_t size, int64_t offset)
{
    uint64_t hash[2];
    hash_key(self->secret, key, size, hash);
    Slot *slot = find(self->table, self->slots, hash);
    if (!slot->after) {
        if (self->used >= self->keys_max) {
            PyErr_SetString(PyExc_MemoryError, "the map is full");
            return -1;
        }
        if ((self->used + 1) * 100 > self->slots * LOAD_PERCENT && self->slots < self->slots_max) {
            if (grow(self) < 0) {
                return -1;
            }
            slot = find(self->table, self->slots, hash);
        }
        slot->high = hash[0];
        slot->low = hash[1];
        self->used++;
    }
    slot->after = offset + 1;
    return 0;
}

static int64_t
latest_of(const OffsetMap *self, const unsigned char *key, Py_ssize_t size)
{
    uint64_t hash[2];
    hash_key(self->secret, key, size, hash);
    return find(self->table, self->slots, hash)->after - 1;
}

/* ------------------------------------------------------------------ records */

/* One record: where it begins, its offset and time, and its key (NULL: it has none). */
typedef struct {
    Py_ssize_t start;
    int64_t offset, timestamp;
    const unsigned char *key;
    Py_ssize_t key_size;
    int is_null;
} Found;

static int
read_found(Reader *reader, Py_ssize_t end, int64_t base_offset, int64_t base_timestamp, Found *found)
{
    int64_t timestamp_delta, offset_delta;
    Py_ssize_t length;
    found->start = reader->position;
    reader->end = end;
    if (read_start(reader, &timestamp_delta, &offset_delta) < 0) {
        return -1;
    }
    if (__builtin_add_overflow(base_timestamp, timestamp_delta, &found->timestamp)
        || __builtin_add_overflow(base_offset, offset_delta, &found->offset)) {
        return fail("a timestamp or offset of more than 64 bits", reader->position);
    }
    if (read_length(reader, &length) < 0) {
        return -1;
    }
    found->key = length < 0 ? NULL : reader->data + reader->position;
    found->key_size = length;
    reader->position += length > 0 ? length : 0;
    if (read_length(reader, &length) < 0) {
        return -1;
    }
    found->is_null = length < 0;
    reader->position += length > 0 ? length : 0;
    return skip_headers(reader) < 0 ? -1 : read_end(reader);
}

static int
opens_at(const Py_buffer *view, Py_ssize_t position, Py_ssize_t count)
{
    if (position < 0 || position > view->len || count < 0 || count > (view->len - position) / 7) {
        PyErr_SetString(PyExc_ValueError, "more records announced than fit");
        return 0;
    }
    return 1;
}

static PyObject *
note(OffsetMap *self, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t position, count;
    long long base_offset, base_timestamp;
    if (!PyArg_ParseTuple(args, "y*nnLL:note", &view, &position, &count, &base_offset, &base_timestamp)) {
        return NULL;
    }
    int wrong = !opens_at(&view, position, count);
    Reader reader = {view.buf, position, view.len};
    for (Py_ssize_t index = 0; index < count && !wrong; index++) {
        Found found;
        wrong = read_found(&reader, view.len, base_offset, base_timestamp, &found) < 0
                || (found.key != NULL && put_key(self, found.key, found.key_size, found.offset) < 0);
    }
    PyBuffer_Release(&view);
    return wrong ? NULL : PyLong_FromSsize_t(reader.position);
}

static int
add_bytes(PyObject *out, const unsigned char *data, Py_ssize_t size)
{
    Py_ssize_t before = PyByteArray_GET_SIZE(out);
    if (size > 0) {
        if (PyByteArray_Resize(out, before + size) < 0) {
            return -1;
        }
        memcpy(PyByteArray_AS_STRING(out) + before, data, (size_t)size);
    }
    return 0;
}

static PyObject *
keep(OffsetMap *self, PyObject *args)
{
    PyObject *out;
    Py_buffer view;
    Py_ssize_t position, count, kept = 0, gone = 0, tombstones = 0;
    long long base_offset, base_timestamp;
    int64_t newest = INT64_MIN;
    int tombstones_go;
    if (!PyArg_ParseTuple(args, "O!y*nnLLp:keep", &PyByteArray_Type, &out, &view, &position, &count, &base_offset,
                          &base_timestamp, &tombstones_go)) {
        return NULL;
    }
    int wrong = !opens_at(&view, position, count);
    Reader reader = {view.buf, position, view.len};
    Py_ssize_t run = position; /* what stays is copied in runs of records */
    for (Py_ssize_t index = 0; index < count && !wrong; index++) {
        Found found;
        if ((wrong = read_found(&reader, view.len, base_offset, base_timestamp, &found) < 0)) {
            break;
        }
        int stays = found.key == NULL || found.offset >= latest_of(self, found.key, found.key_size);
        int is_over = stays && tombstones_go && found.is_null && found.key != NULL;
        gone += is_over;
        if (stays && !is_over) {
            kept++;
            tombstones += found.is_null;
            newest = found.timestamp > newest ? found.timestamp : newest;
        } else {
            wrong = add_bytes(out, reader.data + run, found.start - run) < 0;
            run = reader.position;
        }
    }
    wrong = wrong || add_bytes(out, reader.data + run, reader.position - run) < 0;
    PyBuffer_Release(&view);
    return wrong ? NULL : Py_BuildValue("nnnnL", reader.position, kept, tombstones, gone, (long long)newest);
}

/* ------------------------------------------------------------------ whole batches */

enum { CODEC = 0x07, APPEND_TIME = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20 };

/* One batch of a run: where it stands, and what of its header counts here. */
typedef struct {
    const unsigned char *data;
    Py_ssize_t size;
    int64_t offset, following, base_timestamp, count;
    unsigned attributes;
} Batch;

/* A run of batches under way: how far it came, where it shall end, and how many records it may still handle. */
typedef struct {
    const unsigned char *data;
    Py_ssize_t position, end, until;
    int64_t offset, room;
    PyObject *crc32c;
} Run;

/* The next batch, where a whole one follows and holds its CRC: 1; 0 where the run is over; -1 with an exception. */
static int
next_batch(const Run *run, Batch *batch)
{
    if (run->position < 0 || run->position >= run->until || run->position >= run->end || run->offset < 0) {
        return 0;
    }
    const unsigned char *data = run->data + run->position;
    batch->size = following_batch(data, run->end - run->position, run->offset, -1);
    if (batch->size == 0) {
        return 0;
    }
    batch->data = data;
    batch->offset = run->offset;
    batch->count = (int32_t)big_endian(data + COUNT_AT, 4);
    batch->attributes = (unsigned)big_endian(data + SUMMED_FROM, 2);
    batch->base_timestamp = (int64_t)big_endian(data + BASE_TIMESTAMP_AT, 8);
    int64_t last_delta = (int64_t)big_endian(data + DELTA_AT, 4);
    if (batch->count < 0 || __builtin_add_overflow(run->offset, last_delta + 1, &batch->following)) {
        return 0;
    }
    return holds_crc(data, batch->size, run->crc32c);
}

/* It is behind the run. */
static void
passed(Run *run, const Batch *batch)
{
    run->position += batch->size;
    run->offset = batch->following;
}

/* Whether its records count for what they say: neither markers nor of transactions, and there are some. */
static int
is_compacted(const Batch *batch)
{
    return batch->count > 0 && !(batch->attributes & (TRANSACTIONAL | CONTROL));
}

/* Its records, where they may be as many as it says. */
static int
open_batch(const Batch *batch, Reader *reader)
{
    *reader = (Reader){batch->data, HEADER_BYTES, batch->size};
    return batch->count <= (batch->size - HEADER_BYTES) / 7;
}

/* What the run does not take is no error: it ends before it. -1: another exception than of records that do not parse. */
static int
is_left(void)
{
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* 1: all of its keys are in the map; 0: the run leaves it; -1 with an exception. */
static int
note_batch(OffsetMap *self, const Batch *batch)
{
    Reader reader;
    if (!open_batch(batch, &reader)) {
        return 0;
    }
    for (int64_t index = 0; index < batch->count; index++) {
        Found found;
        if (read_found(&reader, batch->size, batch->offset, batch->base_timestamp, &found) < 0) {
            return is_left();
        }
        if (found.key != NULL && put_key(self, found.key, found.key_size, found.offset) < 0) {
            return -1;
        }
    }
    return reader.position == batch->size;
}

static PyObject *
note_batches(OffsetMap *self, PyObject *args)
{
    Py_buffer view;
    long long first_dirty, offset, room;
    Run run;
    if (!PyArg_ParseTuple(args, "y*nLLnLO:note_batches", &view, &run.position, &offset, &first_dirty, &run.until, &room,
                          &run.crc32c)) {
        return NULL;
    }
    run.data = view.buf;
    run.end = view.len;
    run.offset = offset;
    run.room = room;
    Batch batch;
    int goes_on;
    while ((goes_on = next_batch(&run, &batch)) > 0) {
        if (batch.following > first_dirty && is_compacted(&batch)) {
            if (batch.attributes & CODEC || batch.count > run.room
                || batch.count > (int64_t)(self->keys_max - self->used) || (goes_on = note_batch(self, &batch)) <= 0) {
                break;
            }
            run.room -= batch.count;
        }
        passed(&run, &batch);
    }
    PyBuffer_Release(&view);
    return goes_on < 0 ? NULL : Py_BuildValue("nL", run.position, (long long)run.offset);
}

/* The header of what stays of a batch, `size` bytes, before them. */
static int
put_header(unsigned char *out, Py_ssize_t size, const Batch *batch, int64_t kept, int64_t newest, PyObject *crc32c)
{
    memcpy(out, batch->data, HEADER_BYTES);
    put_big_endian(out + LENGTH_AT, 4, (uint64_t)size - EPOCH_AT);
    put_big_endian(out + COUNT_AT, 4, (uint64_t)kept);
    if (!(batch->attributes & APPEND_TIME)) {
        put_big_endian(out + MAX_TIMESTAMP_AT, 8, (uint64_t)newest);
    }
    int64_t sum = crc_of(out, size, crc32c);
    put_big_endian(out + CRC_AT, 4, (uint64_t)sum);
    return sum < 0 ? -1 : 0;
}

/* What stays of a batch: 1 with `stays` set as keep_batches gives it; 0: the run leaves it; -1 with an exception. */
static int
keep_batch(OffsetMap *self, const Batch *batch, PyObject *crc32c, PyObject **stays)
{
    Reader reader;
    Py_ssize_t size = HEADER_BYTES, begun = HEADER_BYTES; /* what stays is copied in runs of records */
    int64_t kept = 0, newest = INT64_MIN;
    PyObject *copy = NULL;
    int result = open_batch(batch, &reader);
    for (int64_t index = 0; index < batch->count && result > 0; index++) {
        Found found;
        if (read_found(&reader, batch->size, batch->offset, batch->base_timestamp, &found) < 0) {
            result = is_left();
        } else if (found.key == NULL || found.offset >= latest_of(self, found.key, found.key_size)) {
            kept++;
            newest = found.timestamp > newest ? found.timestamp : newest;
            result = !found.is_null; /* its time begins to count, which is not done here */
        } else {
            if (found.start > begun) {
                if (copy == NULL && (copy = PyBytes_FromStringAndSize(NULL, batch->size)) == NULL) {
                    return -1;
                }
                memcpy(PyBytes_AS_STRING(copy) + size, batch->data + begun, (size_t)(found.start - begun));
                size += found.start - begun;
            }
            begun = reader.position;
        }
    }
    if (result > 0 && reader.position != batch->size) {
        result = 0;
    }
    if (result <= 0) {
        Py_CLEAR(copy);
    } else if (kept == batch->count || kept == 0) {
        *stays = Py_NewRef(kept ? Py_True : Py_None);
    } else {
        if (copy == NULL && (copy = PyBytes_FromStringAndSize(NULL, batch->size)) == NULL) {
            return -1;
        }
        memcpy(PyBytes_AS_STRING(copy) + size, batch->data + begun, (size_t)(batch->size - begun));
        size += batch->size - begun;
        if (_PyBytes_Resize(&copy, size) < 0) {
            return -1;
        }
        if (put_header((unsigned char *)PyBytes_AS_STRING(copy), size, batch, kept, newest, crc32c) < 0) {
            Py_DECREF(copy);
            return -1;
        }
        *stays = copy;
    }
    return result;
}

static PyObject *
keep_batches(OffsetMap *self, PyObject *args)
{
    Py_buffer view;
    long long offset, room;
    Run run;
    if (!PyArg_ParseTuple(args, "y*nLnLO:keep_batches", &view, &run.position, &offset, &run.until, &room, &run.crc32c)) {
        return NULL;
    }
    run.data = view.buf;
    run.end = view.len;
    run.offset = offset;
    run.room = room;
    Batch batch;
    PyObject *all = PyList_New(0);
    int goes_on = all == NULL ? -1 : 1;
    while (goes_on > 0 && (goes_on = next_batch(&run, &batch)) > 0) {
        PyObject *stays = NULL;
        if (!is_compacted(&batch)) {
            stays = Py_NewRef(batch.count ? Py_True : Py_None);
        } else if (batch.attributes & ~(unsigned)APPEND_TIME || batch.count > run.room) {
            break;
        } else if ((goes_on = keep_batch(self, &batch, run.crc32c, &stays)) <= 0) {
            break;
        } else {
            run.room -= batch.count;
        }
        goes_on = PyList_Append(all, stays) < 0 ? -1 : 1;
        Py_DECREF(stays);
        passed(&run, &batch);
    }
    PyBuffer_Release(&view);
    PyObject *result = goes_on < 0 ? NULL : Py_BuildValue("nLO", run.position, (long long)run.offset, all);
    Py_XDECREF(all);
    return result;
}

/* ------------------------------------------------------------------ the type */

static PyObject *
put(OffsetMap *self, PyObject *args)
{
    Py_buffer key;
    long long offset;
    if (!PyArg_ParseTuple(args, "y*L:put", &key, &offset)) {
        return NULL;
    }
    int wrong = put_key(self, key.buf, key.len, offset) < 0;
    PyBuffer_Release(&key);
    if (wrong) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
latest(OffsetMap *self, PyObject *argument)
{
    Py_buffer key;
    if (PyObject_GetBuffer(argument, &key, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    int64_t offset = latest_of(self, key.buf, key.len);
    PyBuffer_Release(&key);
    return PyLong_FromLongLong(offset);
}

static PyObject *
has_room(OffsetMap *self, PyObject *argument)
{
    Py_ssize_t keys = PyLong_AsSsize_t(argument);
    if (keys == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(keys <= (Py_ssize_t)(self->keys_max - self->used));
}

static PyObject *
get_keys_max(OffsetMap *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(self->keys_max);
}

static Py_ssize_t
length(OffsetMap *self)
{
    return (Py_ssize_t)self->used;
}

static PyObject *
new_map(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"buffer_bytes", "secret", NULL};
    Py_ssize_t buffer_bytes, secret_size;
    const char *secret;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "ny#:OffsetMap", names, &buffer_bytes, &secret, &secret_size)) {
        return NULL;
    }
    if (buffer_bytes < 0 || secret_size != 16) {
        PyErr_SetString(PyExc_ValueError, "a size in bytes and a secret of 16 bytes are wanted");
        return NULL;
    }
    OffsetMap *self = (OffsetMap *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    /* While the table grows for the last time, one of half its size lies beside it. */
    size_t slots_max = (size_t)buffer_bytes / sizeof(Slot) * 2 / 3;
    self->slots_max = slots_max < 2 ? 2 : slots_max;
    self->keys_max = self->slots_max * LOAD_PERCENT / 100;
    self->slots = self->slots_max < SLOTS_MIN ? self->slots_max : SLOTS_MIN;
    self->secret[0] = little_endian((const unsigned char *)secret, 8);
    self->secret[1] = little_endian((const unsigned char *)secret + 8, 8);
    if ((self->table = PyMem_RawCalloc(self->slots, sizeof(Slot))) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
dealloc(OffsetMap *self)
{
    PyMem_RawFree(self->table);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef map_methods[] = {
    {"has_room", (PyCFunction)has_room, METH_O, "See offset_map.OffsetMap.has_room."},
    {"keep", (PyCFunction)keep, METH_VARARGS, "See offset_map.OffsetMap.keep."},
    {"keep_batches", (PyCFunction)keep_batches, METH_VARARGS, "See offset_map.OffsetMap.keep_batches."},
    {"latest", (PyCFunction)latest, METH_O, "See offset_map.OffsetMap.latest."},
    {"note", (PyCFunction)note, METH_VARARGS, "See offset_map.OffsetMap.note."},
    {"note_batches", (PyCFunction)note_batches, METH_VARARGS, "See offset_map.OffsetMap.note_batches."},
    {"put", (PyCFunction)put, METH_VARARGS, "See offset_map.OffsetMap.put."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef map_attributes[] = {
    {"keys_max", (getter)get_keys_max, NULL, "How many keys have room.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PySequenceMethods map_sequence = {.sq_length = (lenfunc)length};

static PyTypeObject map_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "strandline.log._offsets.OffsetMap",
    .tp_basicsize = sizeof(OffsetMap),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "See offset_map.OffsetMap.",
    .tp_new = new_map,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = map_methods,
    .tp_getset = map_attributes,
    .tp_as_sequence = &map_sequence,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "strandline.log._offsets",
    .m_doc = "Compaction's map from keys to offsets, compiled.",
    .m_size = 0,
};

PyMODINIT_FUNC
PyInit__offsets(void)
{
    PyObject *module = PyType_Ready(&map_type) < 0 ? NULL : PyModule_Create(&definition);
    if (module != NULL && PyModule_AddObjectRef(module, "OffsetMap", (PyObject *)&map_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
