/* GGUF metadata and tensor names in Hugging Face terms. */
#ifndef MODELS_GGUF_MAP_H
#define MODELS_GGUF_MAP_H

#include "models/arch.h"

/* The architecture of a GGUF file, or NULL with an error that names it. */
const struct arch *gguf_map_arch(const struct gguf *g, struct tlm_error *e);

/* Fills ck->config from the metadata: the common keys here, the others by the
 * architecture's gguf_config. Keys that would change results and are not
 * understood are refused. */
enum tlm_status gguf_map_config(const struct arch *a, struct checkpoint *ck, struct tlm_error *e);

/* Puts the file's own keys into a message that names those of config.json. */
void gguf_map_error(const struct arch *a, struct tlm_error *e);

#endif
