/* Writing of a record's fields, shared by the record codec (_records.c) and the producer (client/_open_batches.c). */

#ifndef STRANDLINE_WRITING_H
#define STRANDLINE_WRITING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

static inline Py_ssize_t
varint_size(int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    Py_ssize_t size = 1;
    while (rest > 0x7F) {
        rest >>= 7;
        size++;
    }
    return size;
}

static inline unsigned char *
write_varint(unsigned char *out, int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    while (rest > 0x7F) {
        *out++ = (unsigned char)(rest | 0x80);
        rest >>= 7;
    }
    *out++ = (unsigned char)rest;
    return out;
}

typedef struct {
    Py_buffer view;
    int there;
} Field;

/* None, or anything with bytes. */
static inline int
open_field(PyObject *object, Field *field)
{
    field->there = object != Py_None;
    return field->there ? PyObject_GetBuffer(object, &field->view, PyBUF_SIMPLE) : 0;
}

static inline void
close_field(Field *field)
{
    if (field->there) {
        PyBuffer_Release(&field->view);
    }
}

static inline Py_ssize_t
field_size(const Field *field)
{
    return field->there ? varint_size(field->view.len) + field->view.len : 1;
}

static inline unsigned char *
write_field(unsigned char *out, const Field *field)
{
    if (!field->there) {
        return write_varint(out, -1);
    }
    out = write_varint(out, field->view.len);
    memcpy(out, field->view.buf, (size_t)field->view.len);
    return out + field->view.len;
}

/* The headers as bytes of their own: rare, so the shortest way is the best. */
static inline PyObject *
encode_headers(PyObject *headers)
{
    PyObject *list = PySequence_Fast(headers, "headers are a sequence of (name, value)");
    if (list == NULL) {
        return NULL;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
    PyObject *encoded = PyByteArray_FromStringAndSize(NULL, 0);
    unsigned char start[10];
    Py_ssize_t used = write_varint(start, count) - start;
    if (encoded == NULL || PyByteArray_Resize(encoded, used) < 0) {
        goto failed;
    }
    memcpy(PyByteArray_AS_STRING(encoded), start, (size_t)used);
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *name, *value;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(list, index), "UO;a header is (name, value)", &name, &value)) {
            goto failed;
        }
        Py_ssize_t name_size;
        const char *name_bytes = PyUnicode_AsUTF8AndSize(name, &name_size);
        Field field;
        if (name_bytes == NULL || open_field(value, &field) < 0) {
            goto failed;
        }
        Py_ssize_t added = varint_size(name_size) + name_size + field_size(&field);
        if (PyByteArray_Resize(encoded, used + added) < 0) {
            close_field(&field);
            goto failed;
        }
        unsigned char *out = (unsigned char *)PyByteArray_AS_STRING(encoded) + used;
        out = write_varint(out, name_size);
        memcpy(out, name_bytes, (size_t)name_size);
        write_field(out + name_size, &field);
        used += added;
        close_field(&field);
    }
    Py_DECREF(list);
    return encoded;
failed:
    Py_DECREF(list);
    Py_XDECREF(encoded);
    return NULL;
}

#endif
