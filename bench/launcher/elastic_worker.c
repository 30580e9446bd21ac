/* SPDX-License-Identifier: Apache-2.0
 * A worker for the rows about jobs whose nodes change: its first instruction notes the time.
 *
 *   elastic_worker DIRECTORY exit|stay     RANK comes from the launcher
 *
 * DIRECTORY gets one file per start, "<generation>.<rank>", and, when a worker that stays is told to
 * stop, "stopped.<generation>.<rank>"; each holds nanoseconds of CLOCK_MONOTONIC, which all network
 * namespaces of a machine share. The generation is counted by the files: the launchers count
 * restarts in different ways. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(int argc, char** argv) {
  const long long born = now_ns();
  if (argc != 3 || !getenv("RANK")) return 2;
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, NULL);
  char name[64];
  for (int generation = 0;; ++generation) {
    snprintf(name, sizeof name, "%d.%s", generation, getenv("RANK"));
    if (note(argv[1], name, born)) break;
  }
  if (strcmp(argv[2], "exit") == 0) return 0;
  sigwaitinfo(&stop, NULL);
  char stopped[80];
  snprintf(stopped, sizeof stopped, "stopped.%s", name);
  note(argv[1], stopped, now_ns());
  return 0;
}
