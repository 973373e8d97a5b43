/* The records of a batch v2, compiled: the twin of records_python.py, which says what each function means.
 *
 * The two accept the same bytes, refuse the same bytes and give the same values (tests/log/test_record_codec.py).
 * Nothing here keeps state, and every read is bounded by the record's own end, which is bounded by the data's.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_batches.h"
#include "_reading.h"
#include "_writing.h"

static PyObject *
read_headers(Reader *reader)
{
    Py_ssize_t count;
    if (read_header_count(reader, &count) < 0) {
        return NULL;
    }
    PyObject *headers = PyTuple_New(count);
    if (headers == NULL) {
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *name = read_name(reader);
        PyObject *value = name == NULL ? NULL : read_bytes(reader);
        PyObject *pair = value == NULL ? NULL : PyTuple_New(2);
        if (pair == NULL) {
            Py_XDECREF(name);
            Py_XDECREF(value);
            Py_DECREF(headers);
            return NULL;
        }
        PyTuple_SET_ITEM(pair, 0, name);
        PyTuple_SET_ITEM(pair, 1, value);
        PyTuple_SET_ITEM(headers, index, pair);
    }
    return headers;
}

/* How a record becomes an instance of a kind of tuple: constants, and where the five fields stand among them. */
typedef struct {
    PyTypeObject *kind;
    PyObject *template;
    Py_ssize_t slots[5];
} Layout;

static int
open_layout(Layout *layout, PyObject *slots)
{
    Py_ssize_t size = PyTuple_GET_SIZE(layout->template);
    if (!PyType_IsSubtype(layout->kind, &PyTuple_Type) || PyTuple_GET_SIZE(slots) != 5) {
        PyErr_SetString(PyExc_TypeError, "a kind of tuple and five slots are wanted");
        return -1;
    }
    for (Py_ssize_t field = 0; field < 5; field++) {
        layout->slots[field] = PyLong_AsSsize_t(PyTuple_GET_ITEM(slots, field));
        if (layout->slots[field] < 0 || layout->slots[field] >= size) {
            PyErr_SetString(PyExc_ValueError, "a slot outside the template");
            return -1;
        }
        for (Py_ssize_t other = 0; other < field; other++) {
            if (layout->slots[other] == layout->slots[field]) {
                PyErr_SetString(PyExc_ValueError, "a slot named twice");
                return -1;
            }
        }
    }
    return 0;
}

/* Puts `item` in its place; false when there is none, for an error was raised. */
static int
put(PyObject *record, Py_ssize_t slot, PyObject *item)
{
    if (item == NULL) {
        return 0;
    }
    PyTuple_SET_ITEM(record, slot, item);
    return 1;
}

static PyObject *
decode_one(Reader *reader, int64_t base_offset, int64_t base_timestamp, PyObject *fixed, const Layout *layout)
{
    int64_t timestamp_delta, offset_delta, timestamp, offset;
    if (read_start(reader, &timestamp_delta, &offset_delta) < 0) {
        return NULL;
    }
    if (__builtin_add_overflow(base_timestamp, timestamp_delta, &timestamp)
        || __builtin_add_overflow(base_offset, offset_delta, &offset)) {
        fail("a timestamp or offset of more than 64 bits", reader->position);
        return NULL;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(layout->template);
    PyObject *record = layout->kind->tp_alloc(layout->kind, size);
    if (record == NULL) {
        return NULL;
    }
    const Py_ssize_t *slots = layout->slots;
    if (!put(record, slots[0], PyLong_FromLongLong(offset))
        || !put(record, slots[1], fixed == Py_None ? PyLong_FromLongLong(timestamp) : Py_NewRef(fixed))
        || !put(record, slots[2], read_bytes(reader)) || !put(record, slots[3], read_bytes(reader))
        || !put(record, slots[4], read_headers(reader)) || read_end(reader) < 0) {
        Py_DECREF(record);
        return NULL;
    }
    for (Py_ssize_t index = 0; index < size; index++) {
        if (PyTuple_GET_ITEM(record, index) == NULL) {
            PyTuple_SET_ITEM(record, index, Py_NewRef(PyTuple_GET_ITEM(layout->template, index)));
        }
    }
    return record;
}

static PyObject *
decode(PyObject *module, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t count;
    long long base_offset, base_timestamp;
    PyObject *fixed, *slots;
    Layout layout;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nLLOO!O!O!:decode", &view, &count, &base_offset, &base_timestamp, &fixed,
                          &PyType_Type, &layout.kind, &PyTuple_Type, &layout.template, &PyTuple_Type, &slots)) {
        return NULL;
    }
    PyObject *records = NULL, *result = NULL;
    if (open_layout(&layout, slots) < 0) {
        goto done;
    }
    /* A record takes seven bytes at least: no count can make this allocate more than the data are worth. */
    if (count < 0 || count > view.len / 7) {
        PyErr_SetString(PyExc_ValueError, "more records announced than fit");
        goto done;
    }
    if ((records = PyList_New(count)) == NULL) {
        goto done;
    }
    Reader reader = {view.buf, 0, view.len};
    for (Py_ssize_t index = 0; index < count; index++) {
        reader.end = view.len;
        PyObject *record = decode_one(&reader, base_offset, base_timestamp, fixed, &layout);
        if (record == NULL) {
            goto done;
        }
        PyList_SET_ITEM(records, index, record);
    }
    result = Py_BuildValue("On", records, reader.position);
done:
    Py_XDECREF(records);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *
check(PyObject *module, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*n:check", &view, &count)) {
        return NULL;
    }
    Reader reader = {view.buf, 0, view.len};
    int wrong = 0;
    for (Py_ssize_t index = 0; index < count && !wrong; index++) {
        int64_t timestamp_delta, offset_delta;
        reader.end = view.len;
        wrong = read_start(&reader, &timestamp_delta, &offset_delta) < 0;
        if (!wrong && offset_delta != index) {
            wrong = fail("an offset delta that does not follow", reader.position) < 0;
        }
        wrong = wrong || skip_bytes(&reader) < 0 || skip_bytes(&reader) < 0 || skip_headers(&reader) < 0
                || read_end(&reader) < 0;
    }
    PyObject *result = wrong ? NULL : PyLong_FromSsize_t(reader.position);
    PyBuffer_Release(&view);
    return result;
}

/* ------------------------------------------------------------------ whole batches */

static PyObject *
intact(PyObject *module, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t position;
    long long offset, epoch, until;
    PyObject *crc32c;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*nLLLO:intact", &view, &position, &offset, &epoch, &until, &crc32c)) {
        return NULL;
    }
    const unsigned char *data = view.buf;
    int holds = position >= 0;
    while (holds > 0 && position < view.len && offset < until) {
        Py_ssize_t size = following_batch(data + position, view.len - position, offset, epoch);
        holds = size > 0 ? holds_crc(data + position, size, crc32c) : 0;
        if (holds > 0) {
            int64_t last_delta = (int32_t)big_endian(data + position + DELTA_AT, 4);
            holds = last_delta < until - offset;
            if (holds) {
                offset += last_delta + 1;
                position += size;
            }
        }
    }
    PyBuffer_Release(&view);
    return holds < 0 ? NULL : Py_BuildValue("nL", position, offset);
}

/* ------------------------------------------------------------------ columns */

/* Where a column grows: the bytearrays of records_python.Columns, in its order. */
enum {
    OFFSETS,
    TIMESTAMPS,
    KEY_VALID,
    KEY_ENDS,
    KEYS,
    VALUE_VALID,
    VALUE_ENDS,
    VALUES,
    LIST_VALID,
    LIST_ENDS,
    NAME_ENDS,
    NAMES,
    HEADER_VALID,
    HEADER_ENDS,
    HEADERS,
    COLUMNS
};

/* How many rows, and bytes of each kind, records take as columns. */
typedef struct {
    Py_ssize_t rows, keys, values, headers, names, contents;
} Sizes;

/* One record's place: what lies at the reader is its key. */
typedef struct {
    int64_t offset, timestamp;
} Place;

static int
read_place(Reader *reader, int64_t base_offset, int64_t base_timestamp, Place *place)
{
    int64_t timestamp_delta, offset_delta;
    if (read_start(reader, &timestamp_delta, &offset_delta) < 0) {
        return -1;
    }
    if (__builtin_add_overflow(base_timestamp, timestamp_delta, &place->timestamp)
        || __builtin_add_overflow(base_offset, offset_delta, &place->offset)) {
        return fail("a timestamp or offset of more than 64 bits", reader->position);
    }
    return 0;
}

static int
measure_field(Reader *reader, Py_ssize_t *bytes)
{
    Py_ssize_t length;
    if (read_length(reader, &length) < 0) {
        return -1;
    }
    if (length > 0) {
        reader->position += length;
        *bytes += length;
    }
    return 0;
}

/* How many bytes at `data` are one character of UTF-8, or, as a negative number, how many stand for none: the longest
   beginning of one, which becomes one U+FFFD (The Unicode Standard, 3.9), as in `read_name`. */
static int
utf8_step(const unsigned char *data, Py_ssize_t left)
{
    unsigned char first = data[0], low = 0x80, high = 0xBF;
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xC2 || first > 0xF4) {
        return -1;
    }
    int following = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (first == 0xE0) {
        low = 0xA0;
    } else if (first == 0xED) {
        high = 0x9F;
    } else if (first == 0xF0) {
        low = 0x90;
    } else if (first == 0xF4) {
        high = 0x8F;
    }
    for (int index = 1; index <= following; index++) {
        if (index >= left || data[index] < low || data[index] > high) {
            return -index;
        }
        low = 0x80;
        high = 0xBF;
    }
    return following + 1;
}

/* The name at the reader as UTF-8 to `out` (NULL: nowhere); how many bytes that are. The name was found to fit. */
static Py_ssize_t
put_name(Reader *reader, char *out)
{
    Py_ssize_t length = 0, size = 0;
    (void)read_length(reader, &length);
    const unsigned char *data = reader->data + reader->position;
    reader->position += length;
    unsigned char all = 0;
    for (Py_ssize_t index = 0; index < length; index++) {
        all |= data[index];
    }
    if (all < 0x80) { /* plain ASCII, as nearly all names are */
        if (out != NULL) {
            memcpy(out, data, (size_t)length);
        }
        return length;
    }
    while (length > 0) {
        int step = utf8_step(data, length);
        int taken = step < 0 ? -step : step, given = step < 0 ? 3 : step;
        if (out != NULL) {
            memcpy(out + size, step < 0 ? (const char *)"\xEF\xBF\xBD" : (const char *)data, (size_t)given);
        }
        size += given;
        data += taken;
        length -= taken;
    }
    return size;
}

static int
measure_headers(Reader *reader, Sizes *sizes)
{
    Py_ssize_t count;
    if (read_header_count(reader, &count) < 0) {
        return -1;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        Reader name = *reader;
        if (skip_name(reader) < 0 || measure_field(reader, &sizes->contents) < 0) {
            return -1;
        }
        sizes->names += put_name(&name, NULL);
    }
    sizes->headers += count;
    return 0;
}

typedef struct {
    char *at[COLUMNS];
    Py_ssize_t rows, headers;
} Filling;

static int32_t *
ends(const Filling *filling, int column)
{
    return (int32_t *)filling->at[column];
}

/* Bytes, or null, as row `row` of three columns: validity, ends and data. */
static void
fill_field(Reader *reader, Filling *filling, int validity, Py_ssize_t row)
{
    Py_ssize_t length;
    int32_t *end = ends(filling, validity + 1) + row;
    (void)read_length(reader, &length);
    if (length >= 0) {
        filling->at[validity][row / 8] |= (char)(1 << (row % 8));
        memcpy(filling->at[validity + 2] + end[0], reader->data + reader->position, (size_t)length);
        reader->position += length;
    }
    end[1] = end[0] + (int32_t)(length > 0 ? length : 0);
}

static void
fill_headers(Reader *reader, Filling *filling, Py_ssize_t row)
{
    Py_ssize_t count;
    (void)read_header_count(reader, &count);
    if (count > 0) {
        filling->at[LIST_VALID][row / 8] |= (char)(1 << (row % 8));
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        int32_t *end = ends(filling, NAME_ENDS) + filling->headers;
        end[1] = end[0] + (int32_t)put_name(reader, filling->at[NAMES] + end[0]);
        fill_field(reader, filling, HEADER_VALID, filling->headers);
        filling->headers++;
    }
    ends(filling, LIST_ENDS)[row + 1] = (int32_t)filling->headers;
}

/* Make room in every column; 0, or -1 with an error raised. */
static int
grow(PyObject *columns, const Sizes *added, int with_headers, Filling *filling)
{
    Py_ssize_t rows = PyByteArray_GET_SIZE(PyTuple_GET_ITEM(columns, OFFSETS)) / 8;
    Py_ssize_t headers = PyByteArray_GET_SIZE(PyTuple_GET_ITEM(columns, NAME_ENDS)) / 4 - 1;
    Py_ssize_t bitmap = (rows + added->rows + 7) / 8 - (rows + 7) / 8;
    Py_ssize_t header_bitmap = (headers + added->headers + 7) / 8 - (headers + 7) / 8;
    const Py_ssize_t more[COLUMNS] = {
        added->rows * 8, added->rows * 8, bitmap, added->rows * 4, added->keys, bitmap, added->rows * 4, added->values,
        with_headers ? bitmap : 0, with_headers ? added->rows * 4 : 0, added->headers * 4, added->names, header_bitmap,
        added->headers * 4, added->contents,
    };
    for (int column = 0; column < COLUMNS; column++) {
        if (more[column] > INT32_MAX - PyByteArray_GET_SIZE(PyTuple_GET_ITEM(columns, column))) {
            PyErr_SetString(PyExc_OverflowError, "a column of more than 2 GB");
            return -1;
        }
    }
    for (int column = 0; column < COLUMNS; column++) {
        PyObject *array = PyTuple_GET_ITEM(columns, column);
        Py_ssize_t before = PyByteArray_GET_SIZE(array);
        if (more[column] && PyByteArray_Resize(array, before + more[column]) < 0) {
            return -1;
        }
        filling->at[column] = PyByteArray_AS_STRING(array);
        if (column == KEY_VALID || column == VALUE_VALID || column == LIST_VALID || column == HEADER_VALID) {
            memset(filling->at[column] + before, 0, (size_t)more[column]);
        }
    }
    filling->rows = rows;
    filling->headers = headers;
    return 0;
}

/* Whether these are columns of one length: with others, filling them would write outside. */
static int
is_columns(PyObject *columns, int with_headers)
{
    Py_ssize_t size[COLUMNS];
    int right = PyTuple_GET_SIZE(columns) == COLUMNS;
    for (Py_ssize_t column = 0; right && column < COLUMNS; column++) {
        PyObject *array = PyTuple_GET_ITEM(columns, column);
        right = PyByteArray_Check(array);
        size[column] = right ? PyByteArray_GET_SIZE(array) : 0;
    }
    if (right) {
        Py_ssize_t rows = size[OFFSETS] / 8, headers = size[NAME_ENDS] / 4 - 1;
        Py_ssize_t bitmap = (rows + 7) / 8, header_bitmap = (headers + 7) / 8;
        right = size[OFFSETS] % 8 == 0 && size[TIMESTAMPS] == rows * 8 && size[KEY_VALID] == bitmap
                && size[KEY_ENDS] == rows * 4 + 4 && size[VALUE_VALID] == bitmap && size[VALUE_ENDS] == rows * 4 + 4
                && size[NAME_ENDS] % 4 == 0 && headers >= 0 && size[HEADER_VALID] == header_bitmap
                && size[HEADER_ENDS] == headers * 4 + 4;
        if (with_headers) {
            right = right && size[LIST_VALID] == bitmap && size[LIST_ENDS] == rows * 4 + 4;
        }
    }
    if (right) {
        const int data[4][2] = {{KEY_ENDS, KEYS}, {VALUE_ENDS, VALUES}, {NAME_ENDS, NAMES}, {HEADER_ENDS, HEADERS}};
        for (int pair = 0; pair < 4; pair++) {
            const char *edges = PyByteArray_AS_STRING(PyTuple_GET_ITEM(columns, data[pair][0]));
            int32_t last;
            memcpy(&last, edges + size[data[pair][0]] - 4, 4);
            right = right && last == size[data[pair][1]];
        }
    }
    if (!right) {
        PyErr_SetString(PyExc_TypeError, "the buffers of a RecordColumns are wanted, all of one length");
    }
    return right;
}

/* Where a record of [low, high) is measured, and others are checked alone. */
static int
measure(Reader *reader, Py_ssize_t count, const Place *base, int64_t low, int64_t high, int with_headers, Sizes *sizes)
{
    Py_ssize_t end = reader->end;
    for (Py_ssize_t index = 0; index < count; index++) {
        Place place;
        Sizes aside = {0, 0, 0, 0, 0, 0};
        reader->end = end;
        if (read_place(reader, base->offset, base->timestamp, &place) < 0) {
            return -1;
        }
        int wanted = place.offset >= low && place.offset < high;
        Sizes *to = wanted ? sizes : &aside;
        to->rows++;
        if (measure_field(reader, &to->keys) < 0 || measure_field(reader, &to->values) < 0
            || (with_headers ? measure_headers(reader, to) : skip_headers(reader)) < 0 || read_end(reader) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
columns(PyObject *module, PyObject *args)
{
    PyObject *arrays, *fixed;
    Py_buffer view;
    Py_ssize_t count;
    long long base_offset, base_timestamp, low, high, fixed_timestamp = 0;
    int with_headers;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!y*nLLOLLp:columns", &PyTuple_Type, &arrays, &view, &count, &base_offset,
                          &base_timestamp, &fixed, &low, &high, &with_headers)) {
        return NULL;
    }
    PyObject *result = NULL;
    Sizes sizes = {0, 0, 0, 0, 0, 0};
    Filling filling;
    const Place base = {base_offset, base_timestamp};
    Reader reader = {view.buf, 0, view.len};
    if (fixed != Py_None && (fixed_timestamp = PyLong_AsLongLong(fixed)) == -1 && PyErr_Occurred()) {
        goto done;
    }
    if (!is_columns(arrays, with_headers)) {
        goto done;
    }
    if (count < 0 || count > view.len / 7) {
        PyErr_SetString(PyExc_ValueError, "more records announced than fit");
        goto done;
    }
    if (measure(&reader, count, &base, low, high, with_headers, &sizes) < 0) {
        goto done;
    }
    Py_ssize_t position = reader.position;
    if (sizes.rows && grow(arrays, &sizes, with_headers, &filling) < 0) {
        goto done;
    }
    reader.position = 0;
    for (Py_ssize_t index = 0, row = sizes.rows ? filling.rows : 0; sizes.rows && index < count; index++) {
        Place place;
        reader.end = view.len;
        (void)read_place(&reader, base_offset, base_timestamp, &place);
        if (place.offset >= low && place.offset < high) {
            ((int64_t *)filling.at[OFFSETS])[row] = place.offset;
            ((int64_t *)filling.at[TIMESTAMPS])[row] = fixed == Py_None ? place.timestamp : fixed_timestamp;
            fill_field(&reader, &filling, KEY_VALID, row);
            fill_field(&reader, &filling, VALUE_VALID, row);
            if (with_headers) {
                fill_headers(&reader, &filling, row);
            }
            row++;
        }
        reader.position = reader.end;
    }
    result = Py_BuildValue("nn", sizes.rows, position);
done:
    PyBuffer_Release(&view);
    return result;
}

/* ------------------------------------------------------------------ writing */

static PyObject *
append(PyObject *module, PyObject *const *args, Py_ssize_t number)
{
    (void)module;
    if (number != 6 || !PyByteArray_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "append(bytearray, timestamp_delta, offset_delta, key, value, headers)");
        return NULL;
    }
    long long timestamp_delta = PyLong_AsLongLong(args[1]);
    long long offset_delta = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Field key = {.there = 0}, value = {.there = 0};
    PyObject *headers = NULL, *result = NULL;
    if (open_field(args[3], &key) < 0) {
        key.there = 0;
        goto done;
    }
    if (open_field(args[4], &value) < 0) {
        value.there = 0;
        goto done;
    }
    Py_ssize_t headers_size = 1;
    int with_headers = PyObject_IsTrue(args[5]);
    if (with_headers < 0) {
        goto done;
    }
    if (with_headers) {
        if ((headers = encode_headers(args[5])) == NULL) {
            goto done;
        }
        headers_size = PyByteArray_GET_SIZE(headers);
    }
    Py_ssize_t body = 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + field_size(&key)
                      + field_size(&value) + headers_size;
    Py_ssize_t size = varint_size(body) + body;
    Py_ssize_t before = PyByteArray_GET_SIZE(args[0]);
    if (PyByteArray_Resize(args[0], before + size) < 0) {
        goto done;
    }
    unsigned char *out = (unsigned char *)PyByteArray_AS_STRING(args[0]) + before;
    out = write_varint(out, body);
    *out++ = 0;
    out = write_varint(out, timestamp_delta);
    out = write_varint(out, offset_delta);
    out = write_field(out, &key);
    out = write_field(out, &value);
    if (headers == NULL) {
        *out = 0;
    } else {
        memcpy(out, PyByteArray_AS_STRING(headers), (size_t)headers_size);
    }
    result = PyLong_FromSsize_t(size);
done:
    close_field(&key);
    close_field(&value);
    Py_XDECREF(headers);
    return result;
}

static PyMethodDef methods[] = {
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, "See records_python.append."},
    {"columns", columns, METH_VARARGS, "See records_python.columns."},
    {"check", check, METH_VARARGS, "See records_python.check."},
    {"decode", decode, METH_VARARGS, "See records_python.decode."},
    {"intact", intact, METH_VARARGS, "See records_python.intact."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "strandline.log._records",
    .m_doc = "The record codec, compiled.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__records(void)
{
    return PyModule_Create(&definition);
}
