// SPDX-License-Identifier: Apache-2.0
// A worker for jobs that get faults. It all-reduces small steps for ever and checks each sum. It
// also checks that there is only one rank 0, even if networks and launchers fail.
//
//   steady_worker DIRECTORY [deaf]
//
// deaf: it does no all-reduce and ignores SIGTERM. Such a worker notices nothing and must be
// killed.
//
// DIRECTORY is shared by all workers of the job, hosts included:
//   rank0        locked by the rank 0 that lives; the kernel lets go when its process is gone
//   violations   one line for each thing that must never happen
//   rounds/N     made by rank 0 once round N works: its world size
//   finish       when this appears all workers end with 0, after the same step
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "worker_sdk/core/session.h"

namespace {

using namespace ddprun;

constexpr int kStepsToProve = 3;
constexpr std::size_t kNumElements = 4096;
constexpr std::chrono::milliseconds kStepTime{2};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// One write() for each line, so that lines of several processes don't mix.
void append(const std::string& path, const std::string& line) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file || ::write(file.get(), line.data(), line.size()) < 0) throw_system_error(path, errno);
}

int violation(const std::string& directory, const std::string& what) {
  append(directory + "/violations",
         concat("round ", variable("DDPRUN_ROUND"), " rank ", variable("RANK"), " on ",
                variable("DDPRUN_NODE_ADDR"), ": ", what, "\n"));
  return 99;
}

void say_that_the_round_works(const std::string& directory, int world_size) {
  const std::string path = concat(directory, "/rounds/", variable("DDPRUN_ROUND"));
  append(path + ".part", std::to_string(world_size));
  if (::rename((path + ".part").c_str(), path.c_str()) != 0) throw_system_error(path, errno);
}

bool is_over(const std::string& directory) {
  return ::access((directory + "/finish").c_str(), F_OK) == 0;
}

int run_deaf(const std::string& directory, bool is_first) {
  ::signal(SIGTERM, SIG_IGN);
  if (is_first) say_that_the_round_works(directory, std::stoi(variable("WORLD_SIZE")));
  while (!is_over(directory)) std::this_thread::sleep_for(kStepTime);
  return 0;
}

int run(const std::string& directory, bool is_deaf) {
  const bool is_first = variable("RANK") == "0";
  const UniqueFd lock(::open((directory + "/rank0").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock) throw_system_error(directory + "/rank0", errno);
  if (is_first && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return violation(directory, "another rank 0 lives");
  }
  if (is_deaf) return run_deaf(directory, is_first);
  const std::chrono::milliseconds limit{30'000};
  const auto session = Session::from_env({.connect_timeout = limit, .store_timeout = limit});
  const auto world =
      session->make_communicator(BackendChoice::kHost, {.timeout = limit, .init_timeout = limit});
  const auto size = static_cast<float>(world->size());
  const auto rank = static_cast<float>(world->rank());
  std::vector<float> values(kNumElements);
  for (int step = 1;; ++step) {
    values.assign(kNumElements, rank);
    values[0] = is_first && is_over(directory) ? 1.0f : 0.0f;
    world->all_reduce({.data = values.data(), .count = values.size()}, ReduceOp::kSum);
    for (std::size_t i = 1; i < values.size(); ++i) {
      if (values[i] != size * (size - 1) / 2) return violation(directory, "a wrong sum");
    }
    if (values[0] != 0) return 0;
    if (is_first && step == kStepsToProve) say_that_the_round_works(directory, world->size());
    std::this_thread::sleep_for(kStepTime);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  try {
    return run(argv[1], argc == 3);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
