/* Checksums of files as git and Git LFS name them, computed while the file is
 * still growing. */
#ifndef IO_HUB_HASH_H
#define IO_HUB_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct hub_hasher;

/* Reads fd from 0 to size on a thread of its own, as far as hub_hasher_advance
 * lets it, then writes the data through to the disk. sha256: of the bytes;
 * else git's sha1, of "blob <size>\0" and the bytes. */
enum tlm_status hub_hasher_start(int fd, int64_t size, bool sha256, struct hub_hasher **out, struct tlm_error *e);
/* Bytes [0, ready) are in the file. */
void hub_hasher_advance(struct hub_hasher *h, int64_t ready);
/* True when all is read. hex has room for 65; io_error: errno of a failed read, or 0. */
bool hub_hasher_done(struct hub_hasher *h, char *hex, int *io_error);
/* Stops wherever it is. NULL allowed. */
void hub_hasher_free(struct hub_hasher *h);

#endif
