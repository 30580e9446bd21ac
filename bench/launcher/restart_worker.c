/* SPDX-License-Identifier: Apache-2.0
 * A worker for "crash → all workers running again": its first instruction notes the time. Of the
 * first generation, the last rank dies once all are up; the second generation ends once all are up.
 *
 *   restart_worker DIRECTORY     RANK and WORLD_SIZE come from the launcher
 *
 * DIRECTORY gets one file per start, "<generation>.<rank>", and "death", each holding nanoseconds of
 * CLOCK_MONOTONIC, which all network namespaces of a machine share. The generation is counted by the
 * files, not by TORCHELASTIC_RESTART_COUNT: torchrun's differs between nodes. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Creates DIRECTORY/NAME with `ns` in it; 0 when it exists already. The link makes it appear whole. */
static int note(const char* directory, const char* name, long long ns) {
  char part[4096], path[4096];
  snprintf(part, sizeof part, "%s/part.%d", directory, (int)getpid());
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE* file = fopen(part, "w");
  if (!file) exit(3);
  fprintf(file, "%lld\n", ns);
  fclose(file);
  const int is_new = link(part, path) == 0;
  unlink(part);
  return is_new;
}

static int all_up(const char* directory, int generation, int world_size) {
  char path[4096];
  for (int rank = 0; rank < world_size; ++rank) {
    snprintf(path, sizeof path, "%s/%d.%d", directory, generation, rank);
    if (access(path, F_OK) != 0) return 0;
  }
  return 1;
}

int main(int argc, char** argv) {
  const long long born = now_ns();
  if (argc != 2 || !getenv("RANK") || !getenv("WORLD_SIZE")) return 2;
  const int rank = atoi(getenv("RANK")), world_size = atoi(getenv("WORLD_SIZE"));
  int generation = 0;
  for (char name[64];; ++generation) {
    snprintf(name, sizeof name, "%d.%d", generation, rank);
    if (note(argv[1], name, born)) break;
  }
  const struct timespec pause_1ms = {0, 1000000}, settle = {0, 500000000};
  if (generation == 0 && rank != world_size - 1) {
    for (;;) pause();
  }
  while (!all_up(argv[1], generation, world_size)) nanosleep(&pause_1ms, NULL);
  if (generation > 0) return 0;
  nanosleep(&settle, NULL); /* the launchers are at rest again: an idle job is what crashes */
  note(argv[1], "death", now_ns());
  kill(getpid(), SIGKILL);
  return 1;
}
