/* SPDX-License-Identifier: Apache-2.0
 * A worker for "start → last worker running": its first instruction notes the time, and that is all.
 *
 *   start_worker DIRECTORY     RANK comes from the launcher
 *
 * DIRECTORY gets a file named after the rank that holds nanoseconds of CLOCK_MONOTONIC. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char** argv) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const char* rank = getenv("RANK");
  if (argc != 2 || !rank) return 2;
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", argv[1], rank);
  FILE* file = fopen(path, "w");
  if (!file) return 3;
  fprintf(file, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
  return fclose(file) == 0 ? 0 : 4;
}
