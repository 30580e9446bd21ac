/* SPDX-License-Identifier: Apache-2.0 */
/* ddprunctl and ddprun-agent of a build in which `ddprund` holds them: starts the `ddprund` beside it under its own name.
 * A wheel has no links. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  static const char kProgram[] = "/ddprund";
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof kProgram);
  char* folder_end;
  (void)argc;
  if (length < 0) {
    fprintf(stderr, DDPRUN_NAME ": can't read /proc/self/exe: %s\n", strerror(errno));
    return 1;
  }
  path[length] = '\0';
  folder_end = strrchr(path, '/');
  memcpy(folder_end, kProgram, sizeof kProgram);
  argv[0] = DDPRUN_NAME;
  execv(path, argv);
  fprintf(stderr, DDPRUN_NAME ": can't start %s: %s; install ddprun again\n", path, strerror(errno));
  return 1;
}
