/* The open batches of a producer, compiled: the twin of open_batches_python.py, which says what each class and method
 * means.
 *
 * The two write the same bytes and refuse the same records (tests/client/test_open_batches.py). From the look whether
 * there is room to the last byte written, no Python code runs and the lock of the interpreter is held: so an append is
 * one step to every other thread, without a lock of its own. What may run Python code (a clock, an allocation that
 * collects garbage) comes before it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "../log/_writing.h"

#define BATCH_HEADER_BYTES 61
#define RECORD_OVERHEAD_BYTES 21
#define FIRST_BYTES 256

/* ------------------------------------------------------------------ a record's place */

typedef struct {
    PyObject_HEAD
    PyObject *results;
    Py_ssize_t index;
    long long timestamp_ms;
} Slot;

static int
slot_traverse(Slot *self, visitproc visit, void *arg)
{
    Py_VISIT(self->results);
    return 0;
}

static int
slot_clear(Slot *self)
{
    Py_CLEAR(self->results);
    return 0;
}

static void
slot_dealloc(Slot *self)
{
    PyObject_GC_UnTrack(self);
    slot_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef slot_members[] = {
    {"_results", T_OBJECT, offsetof(Slot, results), 0, NULL},
    {"_index", T_PYSSIZET, offsetof(Slot, index), 0, NULL},
    {"_timestamp_ms", T_LONGLONG, offsetof(Slot, timestamp_ms), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "strandline.client._open_batches.RecordSlot",
    .tp_doc = "See open_batches_python.RecordSlot.",
    .tp_basicsize = sizeof(Slot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_traverse = (traverseproc)slot_traverse,
    .tp_clear = (inquiry)slot_clear,
    .tp_dealloc = (destructor)slot_dealloc,
    .tp_members = slot_members,
};

/* ------------------------------------------------------------------ buffer.memory */

typedef struct {
    PyObject_HEAD
    long long used, limit, record_max, batch_max;
    int closed;
} Memory;

static PyObject *
memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"limit", "record_max", "batch_max", NULL};
    long long limit, record_max, batch_max;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLL:Memory", names, &limit, &record_max, &batch_max)) {
        return NULL;
    }
    Memory *self = (Memory *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->limit = limit;
        self->record_max = record_max;
        self->batch_max = batch_max;
    }
    return (PyObject *)self;
}

static PyObject *
memory_take(Memory *self, PyObject *arg)
{
    long long size = PyLong_AsLongLong(arg);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (self->closed || size > self->limit - self->used) {
        Py_RETURN_FALSE;
    }
    self->used += size;
    Py_RETURN_TRUE;
}

static PyObject *
memory_give_back(Memory *self, PyObject *arg)
{
    long long size = PyLong_AsLongLong(arg);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    self->used -= size;
    Py_RETURN_NONE;
}

static PyObject *
memory_close(Memory *self, PyObject *unused)
{
    (void)unused;
    self->closed = 1;
    Py_RETURN_NONE;
}

static PyMemberDef memory_members[] = {
    {"used", T_LONGLONG, offsetof(Memory, used), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef memory_methods[] = {
    {"take", (PyCFunction)memory_take, METH_O, "See open_batches_python.Memory.take."},
    {"give_back", (PyCFunction)memory_give_back, METH_O, "See open_batches_python.Memory.give_back."},
    {"close", (PyCFunction)memory_close, METH_NOARGS, "See open_batches_python.Memory.close."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject MemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "strandline.client._open_batches.Memory",
    .tp_doc = "See open_batches_python.Memory.",
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = memory_new,
    .tp_members = memory_members,
    .tp_methods = memory_methods,
};

/* ------------------------------------------------------------------ an open batch */

typedef struct {
    PyObject_HEAD
    Memory *memory;
    PyObject *results;
    PyObject *make;       /* a subtype of RecordSlot, or what makes a future */
    PyObject *futures;    /* of a `make` that is not a RecordSlot: lists, else NULL */
    PyObject *timestamps;
    PyObject *data;       /* a bytearray that nobody else sees; NULL once it was taken */
    Py_ssize_t used, count;
    long long size_max, reserved, base_timestamp, max_timestamp;
    char sealed;
} OpenBatch;

/* A record that is ready to be written. */
typedef struct {
    int64_t timestamp;
    const char *key, *value; /* NULL: none */
    Py_ssize_t key_size, value_size;
    PyObject *headers; /* encoded, a bytearray; NULL: none */
    long long bound;   /* as it counts towards buffer.memory */
} Ready;

static int
is_slot_type(PyObject *make)
{
    return PyType_Check(make) && PyType_IsSubtype((PyTypeObject *)make, &SlotType);
}

static PyObject *
batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"memory", "results", "make", "futures", "timestamps", NULL};
    PyObject *memory, *results, *make, *futures, *timestamps;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOO:OpenBatch", names, &MemoryType, &memory, &results, &make,
                                     &futures, &timestamps)) {
        return NULL;
    }
    if (!is_slot_type(make) && !(PyList_Check(futures) && PyList_Check(timestamps))) {
        PyErr_SetString(PyExc_TypeError, "a kind of RecordSlot, or a function that makes a future and two lists");
        return NULL;
    }
    OpenBatch *self = (OpenBatch *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->memory = (Memory *)Py_NewRef(memory);
    self->results = Py_NewRef(results);
    self->make = Py_NewRef(make);
    if (!is_slot_type(make)) {
        self->futures = Py_NewRef(futures);
        self->timestamps = Py_NewRef(timestamps);
    }
    self->used = BATCH_HEADER_BYTES;
    self->size_max = self->memory->batch_max;
    self->max_timestamp = -1;
    self->data = PyByteArray_FromStringAndSize(NULL, FIRST_BYTES);
    if (self->data == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
batch_traverse(OpenBatch *self, visitproc visit, void *arg)
{
    Py_VISIT(self->memory);
    Py_VISIT(self->results);
    Py_VISIT(self->make);
    Py_VISIT(self->futures);
    Py_VISIT(self->timestamps);
    return 0;
}

/* What only an open batch needs. */
static void
let_go(OpenBatch *self)
{
    Py_CLEAR(self->results);
    Py_CLEAR(self->make);
    Py_CLEAR(self->futures);
    Py_CLEAR(self->timestamps);
}

static int
batch_clear(OpenBatch *self)
{
    self->sealed = 1;
    let_go(self);
    Py_CLEAR(self->data);
    Py_CLEAR(self->memory);
    return 0;
}

static void
batch_dealloc(OpenBatch *self)
{
    PyObject_GC_UnTrack(self);
    batch_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Key, value and headers, of which only the headers need memory. 1; 0: no bytes, or headers of another shape; -1. */
static int
make_ready(Ready *ready, PyObject *key, PyObject *value, PyObject *headers)
{
    ready->headers = NULL;
    ready->key = ready->value = NULL;
    ready->key_size = ready->value_size = 0;
    ready->bound = RECORD_OVERHEAD_BYTES;
    if ((key != Py_None && !PyBytes_Check(key)) || (value != Py_None && !PyBytes_Check(value))
        || !PyTuple_Check(headers)) {
        return 0;
    }
    if (key != Py_None) {
        ready->key = PyBytes_AS_STRING(key);
        ready->key_size = PyBytes_GET_SIZE(key);
    }
    if (value != Py_None) {
        ready->value = PyBytes_AS_STRING(value);
        ready->value_size = PyBytes_GET_SIZE(value);
    }
    ready->bound += ready->key_size + ready->value_size;
    Py_ssize_t count = PyTuple_GET_SIZE(headers);
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *pair = PyTuple_GET_ITEM(headers, index);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(pair, 0))) {
            return 0;
        }
        PyObject *content = PyTuple_GET_ITEM(pair, 1);
        if (content != Py_None && !PyBytes_Check(content)) {
            return 0;
        }
        ready->bound += PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(pair, 0)) * 4 + 10;
        ready->bound += content == Py_None ? 0 : PyBytes_GET_SIZE(content);
    }
    if (count && (ready->headers = encode_headers(headers)) == NULL) {
        return -1;
    }
    return 1;
}

static Py_ssize_t
sized(const char *field, Py_ssize_t size)
{
    return field == NULL ? 1 : varint_size(size) + size;
}

static unsigned char *
put_field(unsigned char *out, const char *field, Py_ssize_t size)
{
    if (field == NULL) {
        return write_varint(out, -1);
    }
    out = write_varint(out, size);
    memcpy(out, field, (size_t)size);
    return out + size;
}

static int
ensure_room(OpenBatch *self, Py_ssize_t needed)
{
    Py_ssize_t have = PyByteArray_GET_SIZE(self->data);
    if (needed <= have) {
        return 0;
    }
    /* Twice as much, but no more than a full batch takes. */
    Py_ssize_t wanted = have * 2 <= self->size_max ? have * 2 : (Py_ssize_t)self->size_max;
    return PyByteArray_Resize(self->data, wanted < needed ? needed : wanted);
}

/* 1: written. 0: it has no place here, or in memory. -1: an error. Runs no Python code. */
static int
place(OpenBatch *self, const Ready *ready, PyObject *future)
{
    Memory *memory = self->memory;
    if (self->sealed || memory->closed || ready->bound > memory->limit - memory->used
        || (self->count && self->used + ready->bound > self->size_max)) {
        return 0;
    }
    if (ready->bound > INT32_MAX - self->used) {
        PyErr_SetString(PyExc_ValueError, "a batch of more than 2 GB");
        return -1;
    }
    int64_t base = self->count ? self->base_timestamp : ready->timestamp;
    int64_t delta = ready->timestamp - base;
    Py_ssize_t headers_size = ready->headers == NULL ? 1 : PyByteArray_GET_SIZE(ready->headers);
    Py_ssize_t body = 1 + varint_size(delta) + varint_size(self->count) + sized(ready->key, ready->key_size)
                      + sized(ready->value, ready->value_size) + headers_size;
    Py_ssize_t size = varint_size(body) + body;
    if (ensure_room(self, self->used + size) < 0) {
        return -1;
    }
    if (self->futures != NULL) {
        PyObject *timestamp = PyLong_FromLongLong(ready->timestamp);
        int failed = timestamp == NULL || PyList_Append(self->timestamps, timestamp) < 0;
        Py_XDECREF(timestamp);
        if (failed) {
            return -1;
        }
        if (PyList_Append(self->futures, future) < 0) {
            Py_ssize_t last = PyList_GET_SIZE(self->timestamps) - 1;
            PyList_SetSlice(self->timestamps, last, last + 1, NULL);
            return -1;
        }
    }
    unsigned char *out = (unsigned char *)PyByteArray_AS_STRING(self->data) + self->used;
    out = write_varint(out, body);
    *out++ = 0;
    out = write_varint(out, delta);
    out = write_varint(out, self->count);
    out = put_field(out, ready->key, ready->key_size);
    out = put_field(out, ready->value, ready->value_size);
    if (ready->headers == NULL) {
        *out = 0;
    } else {
        memcpy(out, PyByteArray_AS_STRING(ready->headers), (size_t)headers_size);
    }
    if (self->futures == NULL) {
        Slot *slot = (Slot *)future;
        slot->results = Py_NewRef(self->results);
        slot->index = self->count;
        slot->timestamp_ms = ready->timestamp;
    }
    self->base_timestamp = base;
    if (ready->timestamp > self->max_timestamp) {
        self->max_timestamp = ready->timestamp;
    }
    self->used += size;
    self->count++;
    self->reserved += ready->bound;
    memory->used += ready->bound;
    return 1;
}

/* The record's future once it is written, None where it has no place. */
static PyObject *
write_record(OpenBatch *self, const Ready *ready)
{
    if (self->sealed) {
        Py_RETURN_NONE;
    }
    PyObject *make = Py_NewRef(self->make); /* what follows may seal the batch */
    PyObject *future;
    if (self->futures == NULL) {
        future = ((PyTypeObject *)make)->tp_alloc((PyTypeObject *)make, 0);
    } else {
        future = PyObject_CallNoArgs(make);
    }
    Py_DECREF(make);
    if (future == NULL) {
        return NULL;
    }
    int written = place(self, ready, future);
    if (written == 1) {
        return future;
    }
    Py_DECREF(future);
    if (written < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
batch_append(OpenBatch *self, PyObject *const *args, Py_ssize_t number)
{
    if (number != 4) {
        PyErr_SetString(PyExc_TypeError, "append(timestamp_ms, key, value, headers)");
        return NULL;
    }
    Ready ready;
    ready.timestamp = PyLong_AsLongLong(args[0]);
    if (ready.timestamp == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (ready.timestamp < 0) {
        PyErr_SetString(PyExc_ValueError, "a timestamp before 1970");
        return NULL;
    }
    int right = make_ready(&ready, args[1], args[2], args[3]);
    if (right == 0) {
        PyErr_SetString(PyExc_TypeError, "key and value are bytes or None, headers a tuple of (str, bytes or None)");
    }
    PyObject *future = right == 1 ? write_record(self, &ready) : NULL;
    Py_XDECREF(ready.headers);
    return future;
}

static PyObject *
batch_grow(OpenBatch *self, PyObject *arg)
{
    long long size_max = PyLong_AsLongLong(arg);
    if (size_max == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (self->sealed || self->size_max >= size_max) {
        Py_RETURN_FALSE;
    }
    self->size_max = size_max;
    Py_RETURN_TRUE;
}

static PyObject *
batch_seal(OpenBatch *self, PyObject *unused)
{
    (void)unused;
    self->sealed = 1;
    let_go(self);
    Py_RETURN_NONE;
}

static PyObject *
batch_take(OpenBatch *self, PyObject *unused)
{
    (void)unused;
    if (!self->sealed || self->data == NULL) {
        PyErr_SetString(PyExc_ValueError, "a batch is taken once, when it is sealed");
        return NULL;
    }
    if (PyByteArray_Resize(self->data, self->used) < 0) {
        return NULL;
    }
    memset(PyByteArray_AS_STRING(self->data), 0, BATCH_HEADER_BYTES);
    PyObject *data = self->data;
    self->data = NULL;
    return data;
}

static PyMemberDef batch_members[] = {
    {"count", T_PYSSIZET, offsetof(OpenBatch, count), READONLY, NULL},
    {"size_bytes", T_PYSSIZET, offsetof(OpenBatch, used), READONLY, NULL},
    {"reserved_bytes", T_LONGLONG, offsetof(OpenBatch, reserved), READONLY, NULL},
    {"base_timestamp", T_LONGLONG, offsetof(OpenBatch, base_timestamp), READONLY, NULL},
    {"max_timestamp", T_LONGLONG, offsetof(OpenBatch, max_timestamp), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef batch_methods[] = {
    {"append", (PyCFunction)(void (*)(void))batch_append, METH_FASTCALL, "See open_batches_python.OpenBatch.append."},
    {"grow", (PyCFunction)batch_grow, METH_O, "See open_batches_python.OpenBatch.grow."},
    {"seal", (PyCFunction)batch_seal, METH_NOARGS, "See open_batches_python.OpenBatch.seal."},
    {"take", (PyCFunction)batch_take, METH_NOARGS, "See open_batches_python.OpenBatch.take."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject BatchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "strandline.client._open_batches.OpenBatch",
    .tp_doc = "See open_batches_python.OpenBatch.",
    .tp_basicsize = sizeof(OpenBatch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = batch_new,
    .tp_traverse = (traverseproc)batch_traverse,
    .tp_clear = (inquiry)batch_clear,
    .tp_dealloc = (destructor)batch_dealloc,
    .tp_members = batch_members,
    .tp_methods = batch_methods,
};

/* ------------------------------------------------------------------ the partition of a key */

static uint32_t
murmur2_of(const unsigned char *data, Py_ssize_t size)
{
    const uint32_t m = 0x5BD1E995;
    uint32_t digest = 0x9747B28C ^ (uint32_t)size;
    while (size >= 4) {
        uint32_t word = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        word *= m;
        word = (word ^ word >> 24) * m;
        digest = digest * m ^ word;
        data += 4;
        size -= 4;
    }
    if (size) {
        uint32_t tail = 0;
        for (Py_ssize_t index = 0; index < size; index++) {
            tail |= (uint32_t)data[index] << (8 * index);
        }
        digest = (digest ^ tail) * m;
    }
    digest = (digest ^ digest >> 13) * m;
    return digest ^ digest >> 15;
}

static PyObject *
murmur2(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    uint32_t digest = murmur2_of(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(digest);
}

/* ------------------------------------------------------------------ the open batches of a topic */

static PyObject *time_module, *time_ns;

typedef struct {
    PyObject_HEAD
    Py_ssize_t partitions;
    OpenBatch **open;
    PyObject *wall_ms; /* NULL: `time.time_ns`, as it is at the moment: the simulator replaces it */
    Py_ssize_t sticky;
    long long sticky_left;
} OpenBatches;

static PyObject *
open_batches_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"partitions", "wall_ms", NULL};
    Py_ssize_t partitions;
    PyObject *wall_ms;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nO:OpenBatches", names, &partitions, &wall_ms)) {
        return NULL;
    }
    if (partitions < 1 || partitions > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a topic has at least one partition");
        return NULL;
    }
    OpenBatches *self = (OpenBatches *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->sticky = -1;
    self->wall_ms = wall_ms == Py_None ? NULL : Py_NewRef(wall_ms);
    self->open = PyMem_Calloc((size_t)partitions, sizeof(OpenBatch *));
    if (self->open == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->partitions = partitions;
    return (PyObject *)self;
}

static int
open_batches_traverse(OpenBatches *self, visitproc visit, void *arg)
{
    Py_VISIT(self->wall_ms);
    for (Py_ssize_t index = 0; index < self->partitions; index++) {
        Py_VISIT(self->open[index]);
    }
    return 0;
}

static int
open_batches_clear(OpenBatches *self)
{
    Py_CLEAR(self->wall_ms);
    for (Py_ssize_t index = 0; index < self->partitions; index++) {
        Py_CLEAR(self->open[index]);
    }
    return 0;
}

static void
open_batches_dealloc(OpenBatches *self)
{
    PyObject_GC_UnTrack(self);
    open_batches_clear(self);
    PyMem_Free(self->open);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* 0, or -1 with an error raised. */
static int
read_clock(const OpenBatches *self, int64_t *now_ms)
{
    PyObject *clock = self->wall_ms == NULL ? PyObject_GetAttr(time_module, time_ns) : Py_NewRef(self->wall_ms);
    PyObject *now = clock == NULL ? NULL : PyObject_CallNoArgs(clock);
    *now_ms = now == NULL ? -1 : PyLong_AsLongLong(now);
    Py_XDECREF(clock);
    Py_XDECREF(now);
    if (*now_ms == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (self->wall_ms == NULL) {
        *now_ms /= 1000000;
    }
    return 0;
}

/* The partition a record belongs to, -1 where that is not for us to say, and -2 with an error raised. */
static Py_ssize_t
partition_of(const OpenBatches *self, PyObject *partition, const Ready *ready)
{
    if (partition != Py_None) {
        if (!PyLong_Check(partition)) {
            return -1;
        }
        Py_ssize_t number = PyLong_AsSsize_t(partition);
        if (number == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return -1;
        }
        return number >= 0 && number < self->partitions ? number : -1;
    }
    if (ready->key != NULL) {
        return (Py_ssize_t)(murmur2_of((const unsigned char *)ready->key, ready->key_size) & 0x7FFFFFFF)
               % self->partitions;
    }
    return self->sticky_left > 0 ? self->sticky : -1;
}

static PyObject *
open_batches_append(OpenBatches *self, PyObject *const *args, Py_ssize_t number)
{
    if (number != 5) {
        PyErr_SetString(PyExc_TypeError, "append(value, key, headers, partition, timestamp_ms)");
        return NULL;
    }
    Ready ready;
    PyObject *future = NULL;
    int right = make_ready(&ready, args[1], args[0], args[2]);
    if (right < 1) {
        if (right < 0) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    Py_ssize_t place = -1;
    if (args[4] == Py_None) {
        if (read_clock(self, &ready.timestamp) < 0) {
            goto done;
        }
    } else if (PyLong_Check(args[4])) {
        ready.timestamp = PyLong_AsLongLong(args[4]);
        PyErr_Clear(); /* one that does not fit is -1, and that is refused below */
    } else {
        ready.timestamp = -1;
    }
    place = ready.timestamp < 0 ? -1 : partition_of(self, args[3], &ready);
    OpenBatch *batch = place < 0 ? NULL : self->open[place];
    if (batch == NULL || batch->sealed || ready.bound > batch->memory->record_max) {
        future = Py_NewRef(Py_None);
        goto done;
    }
    Py_INCREF(batch);
    future = write_record(batch, &ready);
    if (future != NULL && future != Py_None && args[3] == Py_None && ready.key == NULL) {
        self->sticky_left -= ready.bound;
    }
    Py_DECREF(batch);
done:
    Py_XDECREF(ready.headers);
    return future;
}

static PyObject *
open_batches_open(OpenBatches *self, PyObject *args)
{
    Py_ssize_t partition;
    PyObject *batch;
    if (!PyArg_ParseTuple(args, "nO!:open", &partition, &BatchType, &batch)) {
        return NULL;
    }
    if (partition < 0 || partition >= self->partitions) {
        PyErr_SetString(PyExc_IndexError, "a partition that the topic does not have");
        return NULL;
    }
    Py_XSETREF(self->open[partition], (OpenBatch *)Py_NewRef(batch));
    Py_RETURN_NONE;
}

static PyObject *
open_batches_stick(OpenBatches *self, PyObject *args)
{
    Py_ssize_t partition;
    long long left;
    if (!PyArg_ParseTuple(args, "nL:stick", &partition, &left)) {
        return NULL;
    }
    if (partition < 0 || partition >= self->partitions) {
        PyErr_SetString(PyExc_IndexError, "a partition that the topic does not have");
        return NULL;
    }
    self->sticky = partition;
    self->sticky_left = left;
    Py_RETURN_NONE;
}

static PyObject *
open_batches_spend(OpenBatches *self, PyObject *arg)
{
    long long size = PyLong_AsLongLong(arg);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    self->sticky_left -= size;
    Py_RETURN_NONE;
}

static PyMemberDef open_batches_members[] = {
    {"partitions", T_PYSSIZET, offsetof(OpenBatches, partitions), READONLY, NULL},
    {"sticky", T_PYSSIZET, offsetof(OpenBatches, sticky), READONLY, NULL},
    {"sticky_left", T_LONGLONG, offsetof(OpenBatches, sticky_left), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef open_batches_methods[] = {
    {"append", (PyCFunction)(void (*)(void))open_batches_append, METH_FASTCALL,
     "See open_batches_python.OpenBatches.append."},
    {"open", (PyCFunction)open_batches_open, METH_VARARGS, "See open_batches_python.OpenBatches.open."},
    {"stick", (PyCFunction)open_batches_stick, METH_VARARGS, "See open_batches_python.OpenBatches.stick."},
    {"spend", (PyCFunction)open_batches_spend, METH_O, "See open_batches_python.OpenBatches.spend."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LanesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "strandline.client._open_batches.OpenBatches",
    .tp_doc = "See open_batches_python.OpenBatches.",
    .tp_basicsize = sizeof(OpenBatches),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = open_batches_new,
    .tp_traverse = (traverseproc)open_batches_traverse,
    .tp_clear = (inquiry)open_batches_clear,
    .tp_dealloc = (destructor)open_batches_dealloc,
    .tp_members = open_batches_members,
    .tp_methods = open_batches_methods,
};

/* ------------------------------------------------------------------ the module */

static PyMethodDef functions[] = {
    {"murmur2", murmur2, METH_O, "See open_batches_python.murmur2."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "strandline.client._open_batches",
    .m_doc = "The open batches of a producer, compiled.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__open_batches(void)
{
    time_module = PyImport_ImportModule("time");
    time_ns = PyUnicode_InternFromString("time_ns");
    PyObject *module = time_module == NULL || time_ns == NULL ? NULL : PyModule_Create(&definition);
    if (module == NULL || PyModule_AddType(module, &SlotType) < 0 || PyModule_AddType(module, &MemoryType) < 0
        || PyModule_AddType(module, &BatchType) < 0 || PyModule_AddType(module, &LanesType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
