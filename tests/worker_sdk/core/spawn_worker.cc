// SPDX-License-Identifier: Apache-2.0
// Programs that call spawn(), for spawn_test.py. The first argument chooses one. If spawn() throws,
// stdout gets the Error's code and text, and the exit status is 3.
#include "worker_sdk/core/spawn.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "common/env_names.h"
#include "common/error.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/local_store.h"
#include "worker_sdk/core/session.h"

using namespace ddprun;

namespace {

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

[[noreturn]] void wait_for_signals() {
  for (;;) ::pause();
}

// Sums the squares of the ranks' numbers. NCCL isn't looked for.
void sum_squares(int rank) {
  const auto session = Session::from_env();
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  double sum = rank * rank;
  communicator->all_reduce({.data = &sum, .count = 1, .dtype = DType::kFloat64}, ReduceOp::kSum);
  const char* threads = std::getenv(env::kOmpNumThreads);
  say("rank " + std::to_string(session->rank()) + "/" + std::to_string(session->world_size()) +
      " local " + std::to_string(session->env().local_rank) + " sum " +
      std::to_string(static_cast<int>(sum)) + " omp " + (threads ? threads : "-") + " extra " +
      std::getenv("EXTRA"));
}

// Rank 2 throws. The others wait for it in a collective.
void fail_in_rank_two(int rank) {
  const auto session = Session::from_env();
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  if (rank == 2) throw Error(ErrorCode::kUnsupported, "no such layer");
  communicator->barrier();
}

// Rank 2 is slow to unwind. The others have lost it, and end, before it has said why.
void fail_in_rank_two_slowly(int rank) {
  const auto session = Session::from_env();
  struct Slow {
    Session& session;
    bool waits;
    ~Slow() {
      if (!waits) return;
      session.store().wait({"lost/0", "lost/1", "lost/3"});
      ::usleep(100'000);  // by now their processes have ended
    }
  } slow{*session, rank == 2};
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  if (rank == 2) throw Error(ErrorCode::kUnsupported, "no such layer");
  try {
    communicator->barrier();
  } catch (const Error&) {
    session->store().set("lost/" + std::to_string(rank), "");
    throw;
  }
}

void kill_rank_one(int rank) {
  const auto session = Session::from_env();
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  if (rank == 1) ::raise(SIGKILL);
  communicator->barrier();
}

void tell_pid_and_wait(int rank) {
  say("rank " + std::to_string(rank) + " pid " + std::to_string(::getpid()));
  wait_for_signals();
}

// Rank 0 gives up at once. Rank 1 doesn't listen to SIGTERM.
void be_deaf(int rank) {
  if (rank == 0) {
    const auto session = Session::from_env();
    session->store().wait({"deaf"});
    std::exit(7);
  }
  ::signal(SIGTERM, SIG_IGN);
  const auto session = Session::from_env();
  session->store().set("deaf", "yes");
  wait_for_signals();
}

// A rank that has heard SIGTERM and doesn't end.
void be_busy(int) {
  ::signal(SIGTERM, [](int) {
    const char text[] = "heard\n";
    if (::write(1, text, sizeof text - 1) < 0) std::abort();
  });
  tell_pid_and_wait(0);
}

void run(std::string_view mode) {
  if (mode == "sum") return spawn(sum_squares, 4, {.environment = {{"EXTRA", "more"}}});
  if (mode == "throw") return spawn(fail_in_rank_two, 4);
  if (mode == "throw-slowly") return spawn(fail_in_rank_two_slowly, 4);
  if (mode == "throw-int") return spawn([](int) { throw 5; }, 1);
  if (mode == "kill") return spawn(kill_rank_one, 3);
  if (mode == "exit") return spawn([](int rank) { std::exit(rank == 1 ? 9 : 0); }, 2);
  if (mode == "wait") return spawn(tell_pid_and_wait, 4);
  if (mode == "deaf") return spawn(be_deaf, 2, {.grace = std::chrono::milliseconds{200}});
  if (mode == "busy") return spawn(be_busy, 1, {.grace = std::chrono::seconds{60}});
  if (mode == "none") return spawn([](int) {}, 0);
  if (mode == "no-function") return spawn({}, 1);
  if (mode == "place") return spawn([](int) {}, 1, {.environment = {{"RANK", "3"}}});
  if (mode == "nested") return spawn([](int) { spawn([](int) {}, 1); }, 2);
  if (mode == "twice") {
    spawn([](int rank) { say("first " + std::to_string(rank)); }, 2);
    spawn([](int rank) { say("second " + std::to_string(rank)); }, 2);
    return;
  }
  if (mode == "other-way") {
    // A rank of this program never calls spawn().
    if (std::getenv(env::kRank)) std::exit(0);
    return spawn([](int) {}, 2);
  }
  if (mode == "threads") {  // the program has other threads, which may hold locks
    std::thread other([] { spawn([](int rank) { say("thread " + std::to_string(rank)); }, 2); });
    other.join();
    return;
  }
  if (mode == "serve") {  // a store, for programs that a test starts as ranks itself
    const LocalStore store;
    say(std::to_string(store.endpoint().port));
    wait_for_signals();
  }
  if (mode == "handler") {
    if (std::getenv(env::kRank)) return spawn(tell_pid_and_wait, 2);
    ::signal(SIGTERM, [](int) {
      const char text[] = "the program's handler\n";
      if (::write(1, text, sizeof text - 1) < 0) std::abort();
    });
    return spawn(tell_pid_and_wait, 2);
  }
  throw std::runtime_error("no such mode");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const Error& error) {
    say(std::string("Error ") + to_string(error.code()) + ": " + error.what());
    return 3;
  }
  say("done");
  return 0;
}
