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

enum { SLOTS_MIN = 64, LOAD_PERCENT = 85, MOVED_AT_ONCE = 8 };

/* While it grows, what is not in the new table yet is found in the old one, of which each put moves a little: to move
 * all at once would hold up the event loop for as long.
 */
typedef struct {
    PyObject_HEAD
    Slot *table, *old; /* NULL: it does not grow */
    size_t slots, old_slots, moved, slots_max, used, keys_max;
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

/* Where the search for this hash begins. */
static inline size_t
first_slot(size_t slots, const uint64_t hash[2])
{
    return (size_t)(((unsigned __int128)hash[0] * slots) >> 64);
}

/* The slot of this hash, or the empty one where it belongs: there is always one. */
static Slot *
find(Slot *table, size_t slots, const uint64_t hash[2])
{
    size_t at = first_slot(slots, hash);
    while (table[at].after && (table[at].high != hash[0] || table[at].low != hash[1])) {
        at = at + 1 == slots ? 0 : at + 1;
    }
    return table + at;
}

/* The next slots of the old table; it is freed behind the last one. */
static void
move(OffsetMap *self, size_t count)
{
    for (; count > 0 && self->moved < self->old_slots; count--) {
        const Slot *slot = self->old + self->moved++;
        if (slot->after) {
            const uint64_t hash[2] = {slot->high, slot->low};
            Slot *to = find(self->table, self->slots, hash);
            if (!to->after) { /* else it was put again since */
                *to = *slot;
            }
        }
    }
    if (self->moved == self->old_slots) {
        PyMem_RawFree(self->old);
        self->old = NULL;
    }
}

/* Begin with twice the slots, or as many as there may be. */
static int
grow(OffsetMap *self)
{
    size_t slots = self->slots * 2 < self->slots_max / 2 ? self->slots * 2 : self->slots_max;
    Slot *table = PyMem_RawCalloc(slots, sizeof(Slot));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    move(self, self->old_slots); /* nothing: all has moved by the time that so many more keys are here */
    self->old = self->table;
    self->old_slots = self->slots;
    self->moved = 0;
    self->table = table;
    self->slots = slots;
    return 0;
}

/* Room for one key that is not here yet. */
static int
make_room(OffsetMap *self)
{
    if (self->used >= self->keys_max) {
        PyErr_SetString(PyExc_MemoryError, "the map is full");
        return -1;
    }
    self->used++;
    if (self->used * 100 > self->slots * LOAD_PERCENT && self->slots < self->slots_max && grow(self) < 0) {
        self->used--;
        return -1;
    }
    return 0;
}

static int
put_hash(OffsetMap *self, const uint64_t hash[2], int64_t offset)
{
    Slot *slot = find(self->table, self->slots, hash);
    if (!slot->after) {
        if (self->old == NULL || !find(self->old, self->old_slots, hash)->after) {
            if (make_room(self) < 0) {
                return -1;
            }
            slot = find(self->table, self->slots, hash);
        }
        slot->high = hash[0];
        slot->low = hash[1];
    }
    slot->after = offset + 1;
    if (self->old != NULL) {
        move(self, MOVED_AT_ONCE);
    }
    return 0;
}

static int64_t
latest_of(const OffsetMap *self, const uint64_t hash[2])
{
    const Slot *slot = find(self->table, self->slots, hash);
    if (!slot->after && self->old != NULL) {
        slot = find(self->old, self->old_slots, hash);
    }
    return slot->after - 1;
}

/* ------------------------------------------------------------------ records */

/* One record: where it begins and ends, its offset and time, its key (NULL: it has none), and the hash of that. */
typedef struct {
    Py_ssize_t start, end;
    int64_t offset, timestamp;
    const unsigned char *key;
    Py_ssize_t key_size;
    uint64_t hash[2];
    int is_null;
} Found;

enum { GROUP = 16 };

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
    found->end = reader->end;
    return skip_headers(reader) < 0 ? -1 : read_end(reader);
}

/* The next records, as many as are left or make a group: their slots are on their way into the cache by the time that
 * the first of them is looked for. How many; where it is fewer, an exception is set.
 */
static Py_ssize_t
read_group(const OffsetMap *self, Reader *reader, Py_ssize_t end, int64_t base_offset, int64_t base_timestamp,
           Py_ssize_t wanted, Found group[GROUP])
{
    Py_ssize_t number = 0;
    while (number < wanted && read_found(reader, end, base_offset, base_timestamp, group + number) == 0) {
        Found *found = group + number++;
        if (found->key != NULL) {
            hash_key(self->secret, found->key, found->key_size, found->hash);
            __builtin_prefetch(self->table + first_slot(self->slots, found->hash));
            if (self->old != NULL) {
                __builtin_prefetch(self->old + first_slot(self->old_slots, found->hash));
            }
        }
    }
    return number;
}

static inline Py_ssize_t
in_group(Py_ssize_t left)
{
    return left < GROUP ? left : GROUP;
}

/* Note `count` records: 0, or -1 with an exception; those before the one that does not parse are in the map. */
static int
note_records(OffsetMap *self, Reader *reader, Py_ssize_t end, int64_t base_offset, int64_t base_timestamp,
             Py_ssize_t count)
{
    Found group[GROUP];
    for (Py_ssize_t wanted; (wanted = in_group(count)) > 0; count -= wanted) {
        Py_ssize_t number = read_group(self, reader, end, base_offset, base_timestamp, wanted, group);
        for (Py_ssize_t index = 0; index < number; index++) {
            if (group[index].key != NULL && put_hash(self, group[index].hash, group[index].offset) < 0) {
                return -1;
            }
        }
        if (number < wanted) {
            return -1;
        }
    }
    return 0;
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
    wrong = wrong || note_records(self, &reader, view.len, base_offset, base_timestamp, count) < 0;
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
    Found group[GROUP];
    for (Py_ssize_t wanted; (wanted = in_group(count)) > 0 && !wrong; count -= wanted) {
        wrong = read_group(self, &reader, view.len, base_offset, base_timestamp, wanted, group) < wanted;
        for (const Found *found = group; found < group + wanted && !wrong; found++) {
            int stays = found->key == NULL || found->offset >= latest_of(self, found->hash);
            int is_over = stays && tombstones_go && found->is_null && found->key != NULL;
            gone += is_over;
            if (stays && !is_over) {
                kept++;
                tombstones += found->is_null;
                newest = found->timestamp > newest ? found->timestamp : newest;
            } else {
                wrong = add_bytes(out, reader.data + run, found->start - run) < 0;
                run = found->end;
            }
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

/* Whether more than its own records say what it counts for; or it is a marker. A run ends before such a batch. */
static int
is_of_a_transaction(const Batch *batch)
{
    return (batch->attributes & (TRANSACTIONAL | CONTROL)) != 0;
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
    if (note_records(self, &reader, batch->size, batch->offset, batch->base_timestamp, (Py_ssize_t)batch->count) < 0) {
        return is_left();
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
        if (batch.following > first_dirty && is_of_a_transaction(&batch)) {
            break;
        }
        if (batch.following > first_dirty && batch.count > 0) {
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

/* What stays of a batch, as it is collected. */
typedef struct {
    PyObject *batch; /* NULL until something is copied: whole batches stay and go without a copy */
    Py_ssize_t size, copied; /* of the new batch; how much of the old one was looked through */
    int64_t kept, newest;
} Kept;

/* What stays up to `end` is copied in runs of records. */
static int
copy_up_to(Kept *to, const Batch *batch, Py_ssize_t end)
{
    Py_ssize_t more = end - to->copied;
    if (more > 0) {
        if (to->batch == NULL && (to->batch = PyBytes_FromStringAndSize(NULL, batch->size)) == NULL) {
            return -1;
        }
        memcpy(PyBytes_AS_STRING(to->batch) + to->size, batch->data + to->copied, (size_t)more);
        to->size += more;
    }
    return 0;
}

/* 1: all records are sorted out; 0: the run leaves the batch; -1 with an exception. */
static int
keep_records(OffsetMap *self, const Batch *batch, Kept *to)
{
    Reader reader;
    if (!open_batch(batch, &reader)) {
        return 0;
    }
    Found group[GROUP];
    Py_ssize_t left = (Py_ssize_t)batch->count;
    for (Py_ssize_t wanted; (wanted = in_group(left)) > 0; left -= wanted) {
        if (read_group(self, &reader, batch->size, batch->offset, batch->base_timestamp, wanted, group) < wanted) {
            return is_left();
        }
        for (const Found *found = group; found < group + wanted; found++) {
            if (found->key == NULL || found->offset >= latest_of(self, found->hash)) {
                if (found->is_null) {
                    return 0; /* its time begins to count, which is not done here */
                }
                to->kept++;
                to->newest = found->timestamp > to->newest ? found->timestamp : to->newest;
            } else {
                if (copy_up_to(to, batch, found->start) < 0) {
                    return -1;
                }
                to->copied = found->end;
            }
        }
    }
    return reader.position == batch->size;
}

/* What stays of a batch: 1 with `stays` set as keep_batches gives it; 0: the run leaves it; -1 with an exception. */
static int
keep_batch(OffsetMap *self, const Batch *batch, PyObject *crc32c, PyObject **stays)
{
    Kept to = {NULL, HEADER_BYTES, HEADER_BYTES, 0, INT64_MIN};
    int result = keep_records(self, batch, &to);
    if (result > 0 && (to.kept == batch->count || to.kept == 0)) {
        *stays = Py_NewRef(to.kept ? Py_True : Py_None);
    } else if (result > 0) {
        result = -1;
        if (copy_up_to(&to, batch, batch->size) == 0 && _PyBytes_Resize(&to.batch, to.size) == 0) {
            unsigned char *out = (unsigned char *)PyBytes_AS_STRING(to.batch);
            if (put_header(out, to.size, batch, to.kept, to.newest, crc32c) == 0) {
                *stays = Py_NewRef(to.batch);
                result = 1;
            }
        }
    }
    Py_XDECREF(to.batch);
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
        if (is_of_a_transaction(&batch)) {
            break;
        } else if (batch.count == 0) {
            stays = Py_NewRef(Py_None);
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
    uint64_t hash[2];
    hash_key(self->secret, key.buf, key.len, hash);
    int wrong = put_hash(self, hash, offset) < 0;
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
    uint64_t hash[2];
    hash_key(self->secret, key.buf, key.len, hash);
    int64_t offset = latest_of(self, hash);
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
    PyMem_RawFree(self->old);
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
