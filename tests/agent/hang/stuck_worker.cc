// SPDX-License-Identifier: Apache-2.0
// stuck_worker read FILE | sleep | spin | talk: a worker that is stuck in a function
// whose name says where. Says "ready" on stdout when it gets there.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
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

// Moves 128 KiB over TCP by send() and recv(), 20 times a second.
__attribute__((noinline)) int stuck_in_a_conversation() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, any, size) != 0 || ::listen(listener, 1) != 0) return 1;
  ::getsockname(listener, any, &size);
  const int from = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(from, any, size) != 0) return 1;
  const int to = ::accept(listener, nullptr, nullptr);
  ready();
  static char block[131'072];
  for (;;) {
    if (::send(from, block, sizeof block, 0) != sizeof block) return 1;
    if (::recv(to, block, sizeof block, MSG_WAITALL) != sizeof block) return 1;
    ::usleep(50'000);
  }
}

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "read") == 0) return stuck_in_read(argv[2]) + 1;
  if (argc == 2 && std::strcmp(argv[1], "sleep") == 0) return stuck_in_sleep() + 1;
  if (argc == 2 && std::strcmp(argv[1], "spin") == 0) return stuck_in_a_loop() + 1;
  if (argc == 2 && std::strcmp(argv[1], "talk") == 0) return stuck_in_a_conversation() + 1;
  return 2;
}
