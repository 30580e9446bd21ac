// SPDX-License-Identifier: Apache-2.0
// flight_worker WHAT [RANK [TIMEOUT_MS]]: five all-reduces of 1 MiB, each with that deadline. In
// place of the sixth, rank RANK (1) does WHAT. Then all ranks do a seventh. WHAT is one of these:
//   sleep       waits for a signal, for ever
//   kill        kills itself
//   stop        stops itself: nothing of it runs any more
//   broadcast   another operation: a broadcast of 4 numbers from rank 0
//   size, dtype, op   an all-reduce that is not like the others'
//   nothing
// An error of the communicator is said on stderr: exit code 3.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/error.h"
#include "worker_sdk/core/session.h"

using namespace ddprun;

namespace {

void do_otherwise(Communicator& world, const std::string& what, std::vector<float>& numbers) {
  const TensorView all{.data = numbers.data(), .count = numbers.size()};
  TensorView fewer = all, doubles = all;
  fewer.count -= 1;
  doubles.count /= 2;
  doubles.dtype = DType::kFloat64;
  if (what == "sleep") ::pause();
  if (what == "kill") ::kill(::getpid(), SIGKILL);
  if (what == "stop") ::kill(::getpid(), SIGSTOP);
  if (what == "broadcast") world.broadcast({.data = numbers.data(), .count = 4}, 0);
  if (what == "size") world.all_reduce(fewer, ReduceOp::kSum);
  if (what == "dtype") world.all_reduce(doubles, ReduceOp::kSum);
  if (what == "op") world.all_reduce(all, ReduceOp::kMax);
  if (what == "nothing") world.all_reduce(all, ReduceOp::kSum);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string what = argv[1];
  const int chosen = argc > 2 ? std::atoi(argv[2]) : 1;
  const auto session = Session::from_env();
  try {
    CommunicatorOptions options;
    options.timeout = std::chrono::milliseconds(argc > 3 ? std::atoi(argv[3]) : 60'000);
    const auto world = session->make_communicator(BackendChoice::kHost, options);
    std::vector<float> numbers(1 << 18, 1.0F);
    const TensorView all{.data = numbers.data(), .count = numbers.size()};
    for (int i = 1; i <= 7; ++i) {
      session->progress().begin_step(static_cast<std::uint64_t>(i));
      if (i == 6 && session->rank() == chosen) {
        do_otherwise(*world, what, numbers);
      } else {
        world->all_reduce(all, ReduceOp::kSum);
      }
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s: %s\n", session->rank(), to_string(error.code()),
                 error.what());
    return 3;
  }
  return 0;
}
