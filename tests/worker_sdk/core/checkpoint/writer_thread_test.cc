// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/checkpoint/durable_file.h"

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "common/error.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using test::error_of;

TEST_CASE("WriterThread: the caller goes on while a task runs, on another thread") {
  WriterThread writer;
  std::promise<void> may_end;
  std::thread::id where;
  writer.start([&, end = may_end.get_future().share()] {
    end.wait();
    where = std::this_thread::get_id();
  });
  may_end.set_value();  // this line is only reached because start() has returned
  writer.wait();
  CHECK(where != std::thread::id());
  CHECK(where != std::this_thread::get_id());
}

TEST_CASE("WriterThread: the next task begins when the one before has ended") {
  WriterThread writer;
  std::atomic<int> under_way{0}, most{0}, done{0};
  for (int i = 0; i < 20; ++i) {
    writer.start([&] {
      const int now = ++under_way;
      if (now > most) most = now;
      std::this_thread::yield();
      --under_way;
      ++done;
    });
    CHECK(done >= i);
  }
  writer.wait();
  CHECK(done == 20);
  CHECK(most == 1);
}

TEST_CASE("WriterThread: an error surfaces at the next call, once, and the thread goes on") {
  WriterThread writer;
  const auto fail = [] { throw Error(ErrorCode::kSystem, "disk full"); };
  bool ran = false;
  writer.start(fail);
  const Error error = error_of([&] { writer.start([&] { ran = true; }); });
  CHECK(error.code() == ErrorCode::kSystem);
  CHECK(std::string(error.what()) == "disk full");
  writer.wait();
  CHECK_FALSE(ran);
  writer.start(fail);
  CHECK(error_of([&] { writer.wait(); }).code() == ErrorCode::kSystem);
  writer.start([&] { ran = true; });
  writer.wait();
  CHECK(ran);
}

TEST_CASE("WriterThread: its end waits for what is under way") {
  { const WriterThread none; }
  std::atomic<bool> done{false};
  {
    WriterThread writer;
    writer.start([&] {
      std::this_thread::yield();
      done = true;
    });
  }
  CHECK(done);
}
