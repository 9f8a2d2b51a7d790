/* The parts of an MLX directory beside its weights. */
#ifndef CONVERT_MLX_DIR_H
#define CONVERT_MLX_DIR_H

#include "convert/plan.h"
#include "convert/work_dir.h"

/* config.json, tokenizer files, generation_config.json, model card (mlx_files.c). */
enum tlm_status mlx_write_files(const struct convert_job *j, const struct plan *p, const struct work_dir *d,
                                struct tlm_error *e);

/* A GGUF file's config as a Hugging Face directory has it (hf_config.c); free with cJSON_Delete. */
enum tlm_status mlx_config_of_gguf(const struct source *s, const struct plan *p, cJSON **out, struct tlm_error *e);
/* tokenizer.json, tokenizer_config.json and the chat template of a GGUF file (hf_tokenizer.c). */
enum tlm_status mlx_write_gguf_tokenizer(const struct gguf *g, const struct work_dir *d, struct tlm_error *e);

#endif
