// SPDX-License-Identifier: Apache-2.0
// stuck_worker read FILE | sleep | spin | start PROGRAM…: a worker that is stuck in a function
// whose name says where. Says "ready" on stdout when it gets there.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace {

void ready() {
  std::puts("ready");
  std::fflush(stdout);
}

}  // namespace

// Not in an anonymous namespace, never inlined: their names are what the tests look for.
__attribute__((noinline)) int stuck_in_read(const char* file) {
  const int fd = ::open(file, O_RDWR);  // a FIFO that nobody else writes to
  ready();
  char byte = 0;
  const bool got = ::read(fd, &byte, 1) == 1;
  return got ? 1 : 0;
}

__attribute__((noinline)) int stuck_in_sleep() {
  ready();
  unsigned left = 1000;
  while (left > 0) left = ::sleep(left);
  return 1;
}

__attribute__((noinline)) int stuck_in_a_loop() {
  ready();
  for (;;) asm volatile("");
}

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "read") == 0) return stuck_in_read(argv[2]) + 1;
  if (argc == 2 && std::strcmp(argv[1], "sleep") == 0) return stuck_in_sleep() + 1;
  if (argc == 2 && std::strcmp(argv[1], "spin") == 0) return stuck_in_a_loop() + 1;
  return 2;
}
