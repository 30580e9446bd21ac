// SPDX-License-Identifier: Apache-2.0
// hang_worker DIR WHAT [RANK]: steps of 50 ms with one all-reduce each. In the first round rank
// RANK (1) does WHAT at step 60, then all go on to step 80. In later rounds all do 20 steps. WHAT
// is one of these:
//   read         reads DIR/part-07, a FIFO that nobody writes to
//   spin         computes for ever
//   sleepMS      does nothing for so long: a hang, or where it is short, none
//   checkpoint   3 s, said to be a checkpoint; the others wait for it
//   first        3 s, in the first step instead
//   slow         every step of this rank takes 40 ms of its own, the others' 5 ms; 400 steps
//   nothing
// When it stops making progress it writes the time (CLOCK_MONOTONIC, ns) to DIR/stopped.
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "worker_sdk/core/session.h"

namespace {

using namespace ddprun;
using std::chrono::milliseconds;

void write_time(const std::string& path) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string temporary = path + ".new";
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  if (file == nullptr) return;
  std::fprintf(file, "%lld", static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
  std::fclose(file);
  ::rename(temporary.c_str(), path.c_str());
}

void pause_for(milliseconds time) { std::this_thread::sleep_for(time); }

}  // namespace

__attribute__((noinline)) int load_part(const std::string& file) {
  ::mkfifo(file.c_str(), 0600);
  const int fd = ::open(file.c_str(), O_RDWR);
  char byte = 0;
  const bool got = ::read(fd, &byte, 1) == 1;
  return got ? 1 : 0;
}

__attribute__((noinline)) void compute_for_ever() {
  for (;;) asm volatile("");
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string directory = argv[1], what = argv[2];
  const auto session = Session::from_env();
  const auto world = session->make_communicator(BackendChoice::kHost);
  const bool first_round = std::getenv("DDPRUN_ROUND") == std::string("1");
  const bool chosen = first_round && session->rank() == (argc > 3 ? std::atoi(argv[3]) : 1);
  const int num_steps = what == "slow" ? 400 : first_round ? 80 : 20;
  float sum = 1;
  for (int step = 1; step <= num_steps; ++step) {
    session->progress().begin_step(static_cast<std::uint64_t>(step));
    if (what == "slow") {
      pause_for(milliseconds(chosen ? 40 : 5));
    } else {
      pause_for(milliseconds(50));
    }
    if (chosen && what == "first" && step == 1) pause_for(milliseconds(3000));
    if (chosen && step == 60 && what != "slow" && what != "first") {
      write_time(directory + "/stopped");
      if (what == "read") load_part(directory + "/part-07");
      if (what == "spin") compute_for_ever();
      if (what.starts_with("sleep")) pause_for(milliseconds(std::atoi(what.c_str() + 5)));
      if (what == "checkpoint") {
        session->progress().set_phase(ProgressPhase::kCheckpoint);
        pause_for(milliseconds(3000));
        session->progress().set_phase(ProgressPhase::kTrain);
      }
    }
    world->all_reduce({.data = &sum, .count = 1}, ReduceOp::kAverage);
    session->progress().end_step();
  }
  std::printf("rank %d did %d steps in round %s\n", session->rank(), num_steps,
              std::getenv("DDPRUN_ROUND"));
  return 0;
}
