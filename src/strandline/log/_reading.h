/* How a record's fields are read: what the record codec (_records.c) and compaction's map (_offsets.c) share.
 *
 * Every read is bounded by the record's own end, which is bounded by the data's. Functions that give an int give -1 with
 * an exception set where the data are no record.
 */

#ifndef STRANDLINE_READING_H
#define STRANDLINE_READING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const unsigned char *data;
    Py_ssize_t position;
    Py_ssize_t end;
} Reader;

static inline int
fail(const char *what, Py_ssize_t position)
{
    PyErr_Format(PyExc_ValueError, "%s at byte %zd", what, position);
    return -1;
}

/* A zigzag varint of at most 64 bits. */
static inline int
read_varint(Reader *reader, int64_t *value)
{
    uint64_t rest = 0;
    int shift = 0;
    Py_ssize_t position = reader->position;
    for (;;) {
        if (position >= reader->end) {
            return fail("the data end within a varint", position);
        }
        unsigned char byte = reader->data[position++];
        if (shift == 63 && byte > 1) {
            return fail("a varint of more than 64 bits", position);
        }
        rest |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            break;
        }
        shift += 7;
    }
    reader->position = position;
    *value = (int64_t)(rest >> 1) ^ -(int64_t)(rest & 1);
    return 0;
}

/* A length: -1 for null; what it announces lies before the reader's end. */
static inline int
read_length(Reader *reader, Py_ssize_t *length)
{
    int64_t value;
    Py_ssize_t at = reader->position;
    if (read_varint(reader, &value) < 0) {
        return -1;
    }
    if (value < -1 || value > reader->end - reader->position) {
        return fail("a length that cannot be", at);
    }
    *length = (Py_ssize_t)value;
    return 0;
}

static inline PyObject *
read_bytes(Reader *reader)
{
    Py_ssize_t length;
    if (read_length(reader, &length) < 0) {
        return NULL;
    }
    if (length < 0) {
        Py_RETURN_NONE;
    }
    PyObject *value = PyBytes_FromStringAndSize((const char *)reader->data + reader->position, length);
    reader->position += length;
    return value;
}

static inline int
skip_bytes(Reader *reader)
{
    Py_ssize_t length;
    if (read_length(reader, &length) < 0) {
        return -1;
    }
    if (length > 0) {
        reader->position += length;
    }
    return 0;
}

/* Apache Kafka stores any bytes as a header's name. Readers see U+FFFD for what is not UTF-8, as its own do. */
static inline PyObject *
read_name(Reader *reader)
{
    Py_ssize_t length, at = reader->position;
    if (read_length(reader, &length) < 0) {
        return NULL;
    }
    if (length < 0) {
        fail("a header without a name", at);
        return NULL;
    }
    PyObject *name = PyUnicode_DecodeUTF8((const char *)reader->data + reader->position, length, "replace");
    reader->position += length;
    return name;
}

static inline int
skip_name(Reader *reader)
{
    Py_ssize_t length, at = reader->position;
    if (read_length(reader, &length) < 0) {
        return -1;
    }
    if (length < 0) {
        return fail("a header without a name", at);
    }
    reader->position += length;
    return 0;
}

static inline int
read_header_count(Reader *reader, Py_ssize_t *count)
{
    int64_t value;
    Py_ssize_t at = reader->position;
    if (read_varint(reader, &value) < 0) {
        return -1;
    }
    /* A header takes two bytes at least. */
    if (value < 0 || value > (reader->end - reader->position) / 2) {
        return fail("a number of record headers that cannot be", at);
    }
    *count = (Py_ssize_t)value;
    return 0;
}

static inline int
skip_headers(Reader *reader)
{
    Py_ssize_t count;
    if (read_header_count(reader, &count) < 0) {
        return -1;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        if (skip_name(reader) < 0 || skip_bytes(reader) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Length, attributes and deltas; narrows the reader to this record. */
static inline int
read_start(Reader *reader, int64_t *timestamp_delta, int64_t *offset_delta)
{
    int64_t length;
    Py_ssize_t at = reader->position;
    if (read_varint(reader, &length) < 0) {
        return -1;
    }
    if (length < 1 || length > reader->end - reader->position) {
        return fail("a record's length that cannot be", at);
    }
    reader->end = reader->position + (Py_ssize_t)length;
    reader->position += 1; /* attributes: none are in use */
    if (read_varint(reader, timestamp_delta) < 0 || read_varint(reader, offset_delta) < 0) {
        return -1;
    }
    if (*offset_delta < 0 || *offset_delta > INT32_MAX) {
        return fail("an offset delta that cannot be", at);
    }
    return 0;
}

static inline int
read_end(const Reader *reader)
{
    if (reader->position != reader->end) {
        return fail("a record's length is not that of its fields, which end", reader->position);
    }
    return 0;
}

#endif
