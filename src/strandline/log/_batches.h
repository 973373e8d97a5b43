/* How whole batches are found and held against their CRC: what the record codec (_records.c) and compaction's map
 * (_offsets.c) share.
 */

#ifndef STRANDLINE_BATCHES_H
#define STRANDLINE_BATCHES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum {
    LENGTH_AT = 8,
    EPOCH_AT = 12,
    MAGIC_AT = 16,
    CRC_AT = 17,
    SUMMED_FROM = 21,
    DELTA_AT = 23,
    BASE_TIMESTAMP_AT = 27,
    MAX_TIMESTAMP_AT = 35,
    COUNT_AT = 57,
    HEADER_BYTES = 61
};

static inline uint64_t
big_endian(const unsigned char *data, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value = value << 8 | data[i];
    }
    return value;
}

static inline void
put_big_endian(unsigned char *data, int bytes, uint64_t value)
{
    while (bytes-- > 0) {
        data[bytes] = (unsigned char)value;
        value >>= 8;
    }
}

/* Bytes of the batch at `data` if its header follows on `offset` and `epoch`; 0 if it does not, or is cut short. */
static inline Py_ssize_t
following_batch(const unsigned char *data, Py_ssize_t left, int64_t offset, int64_t epoch)
{
    if (left < HEADER_BYTES || (int64_t)big_endian(data, 8) != offset || data[MAGIC_AT] != 2) {
        return 0;
    }
    int64_t size = (int64_t)(int32_t)big_endian(data + LENGTH_AT, 4) + EPOCH_AT;
    if (size < HEADER_BYTES || size > left || (int32_t)big_endian(data + DELTA_AT, 4) < 0) {
        return 0;
    }
    return epoch >= 0 && (int32_t)big_endian(data + EPOCH_AT, 4) != epoch ? 0 : (Py_ssize_t)size;
}

/* The CRC of a whole batch by the function `crc32c`; -1 with an exception. */
static inline int64_t
crc_of(const unsigned char *batch, Py_ssize_t size, PyObject *crc32c)
{
    PyObject *summed = PyMemoryView_FromMemory((char *)batch + SUMMED_FROM, size - SUMMED_FROM, PyBUF_READ);
    PyObject *sum = summed == NULL ? NULL : PyObject_CallOneArg(crc32c, summed);
    Py_XDECREF(summed);
    if (sum == NULL) {
        return -1;
    }
    unsigned long found = PyLong_AsUnsignedLong(sum);
    Py_DECREF(sum);
    if (found == (unsigned long)-1 && PyErr_Occurred()) {
        return -1;
    }
    return (int64_t)(found & 0xFFFFFFFF);
}

/* Whether the CRC of the batch holds; -1 with an exception. */
static inline int
holds_crc(const unsigned char *batch, Py_ssize_t size, PyObject *crc32c)
{
    int64_t sum = crc_of(batch, size, crc32c);
    return sum < 0 ? -1 : (uint64_t)sum == big_endian(batch + CRC_AT, 4);
}

#endif
