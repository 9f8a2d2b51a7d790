/* The choice of cache formats for a model's layers:
 *
 *   SPEC[;LAYERS=SPEC...]     SPEC: a preset, "auto", or KEYS[:VALUES]
 *
 * as in "turbo4;0-1,23=f16:tq4". Layers count from 0; later parts win. */
#ifndef KVFORMAT_KV_SPEC_H
#define KVFORMAT_KV_SPEC_H

#include "kvformat/kv_format.h"

struct kv_choice {
    struct kv_format key, value;
    bool automatic; /* the bits of keys are the model's to choose (preset auto) */
};

/* out [n_layers] */
enum tlm_status kv_spec_parse(const char *text, int n_layers, struct kv_choice *out, struct tlm_error *e);
/* "chan4+pre+mix:tq4"; "f16" when both are the same exact format. */
enum { KV_CHOICE_NAME_MAX = 2 * KV_FORMAT_NAME_MAX };
void kv_choice_name(const struct kv_choice *c, char out[KV_CHOICE_NAME_MAX]);
/* Those of n layers as a specification that kv_spec_parse reads: the most
 * frequent one first, then the layers that differ. Ends in "..." where out is
 * too small. */
void kv_choices_name(const struct kv_choice *c, int n, char *out, size_t size);

/* Names of the presets, then NULL. */
const char *kv_preset_name(int i);

#endif
