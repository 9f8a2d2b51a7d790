/* The entry point that a fuzz target defines and libFuzzer or replay.c calls. It
 * returns 0; anything wrong shows as a crash, a sanitizer report or a time-out. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
