/* Opening a tokenizer from what another reader has already opened. The result
 * keeps no pointer into the GGUF file. Public part: turbolm/tokenizer.h. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <turbolm/tokenizer.h>

#include "base/err.h"

struct gguf;

enum tlm_status tokenizer_from_gguf(const struct gguf *g, struct tlm_tokenizer **out, struct tlm_error *e);
enum tlm_status tokenizer_from_dir(const char *dir, struct tlm_tokenizer **out, struct tlm_error *e);
/* A tokenizer.json alone, without the files that stand beside it. */
enum tlm_status tokenizer_from_json_file(const char *path, struct tlm_tokenizer **out, struct tlm_error *e);

#endif
