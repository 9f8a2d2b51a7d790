/* Everything public. */
#ifndef TURBOLM_TURBOLM_H
#define TURBOLM_TURBOLM_H

#include "chat.h"
#include "convert.h"
#include "dataset.h"
#include "engine.h"
#include "eval.h"
#include "hub.h"
#include "log.h"
#include "model.h"
#include "prompt_cache.h"
#include "status.h"
#include "tokenizer.h"

#endif
