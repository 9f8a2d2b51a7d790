/* Packing of bf16 matrices into bf12, for pack.c. */
#ifndef CPU_BF12_PACK_H
#define CPU_BF12_PACK_H

#include <stdbool.h>

#include "backend/cpu/cpu_backend.h"

/* How w is laid out, but for m->panel; false where it is not bf16 or too small to gain. *bytes: of the panels. */
bool bf12_layout(const struct weight *w, struct bf12_matrix *m, size_t *bytes);

/* Fills the panels, zeroed memory. False: too many elements are far from their neighbours. The pages of the file are
 * dropped behind. */
bool bf12_pack(struct cpu_backend *b, const struct weight *w, const struct bf12_matrix *m, uint8_t *panels);

/* Lets go of the file's pages of rows first .. end, where these are worth it (pack.c). */
void weight_drop_rows(const struct weight *w, int64_t first, int64_t end);

#endif
