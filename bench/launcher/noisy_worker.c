// SPDX-License-Identifier: Apache-2.0
// A worker of the row `tee`: argv[1] lines of 100 bytes on stdout, as fast as they are taken, in the
// 8 KiB blocks of a buffered stream. It costs next to nothing itself (a line is copied, not
// formatted): what is measured is who takes the lines.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kLineBytes = 100, kNumberAt = 14, kDigits = 9, kBlockBytes = 8192 };

static void count_up(char* digits) {
  for (int i = kDigits - 1; i >= 0 && ++digits[i] > '9'; --i) digits[i] = '0';
}

static int write_all(const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t written = write(STDOUT_FILENO, bytes, size);
    if (written < 0 && errno != EINTR) return -1;
    if (written < 0) continue;
    bytes += written;
    size -= (size_t)written;
  }
  return 0;
}

int main(int argc, char** argv) {
  const char* rank = getenv("RANK");
  const long num_lines = argc > 1 ? atol(argv[1]) : 0;
  char line[kLineBytes + 1];
  snprintf(line, sizeof line, "rank %3.3s line %0*d %075d\n", rank ? rank : "?", kDigits, 0, 0);
  static char buffer[kBlockBytes + kLineBytes];
  size_t used = 0;
  for (long i = 0; i < num_lines; ++i) {
    memcpy(buffer + used, line, kLineBytes);
    count_up(line + kNumberAt);
    used += kLineBytes;
    if (used < kBlockBytes) continue;
    if (write_all(buffer, kBlockBytes) != 0) return 1;
    used -= kBlockBytes;
    memcpy(buffer, buffer + kBlockBytes, used);
  }
  return write_all(buffer, used) == 0 ? 0 : 1;
}
