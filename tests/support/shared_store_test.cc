// SPDX-License-Identifier: Apache-2.0
// Tests the rules of SharedStore, which replaces a real store in other tests.
#include "tests/support/shared_store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

TEST_CASE("SharedStore: threads and forked children share one table") {
  SharedStore store;
  const pid_t child = ::fork();
  if (child == 0) {
    store.set("from", "child");
    ::_exit(store.get("go") == "on" ? 0 : 1);
  }
  std::thread other([own = std::shared_ptr<store::Store>(store.clone())] {
    if (own->get("from") == "child") own->set("go", "on");
  });
  other.join();
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("SharedStore: values, counters and COMPARE_SET as c10d has them") {
  SharedStore store;
  CHECK(store.compare_set("k", "old", "new") == "old");
  CHECK(!store.check({"k"}));
  CHECK(store.compare_set("k", "", "a") == "a");
  CHECK(store.compare_set("k", "b", "c") == "a");
  CHECK(store.compare_set("k", "a", "c") == "c");
  store.append("k", "d");
  CHECK(store.get("k") == "cd");
  CHECK(store.add("n", 3) == 3);
  CHECK(store.add("n", -1) == 2);
  CHECK(store.num_keys() == 2);
  CHECK(store.delete_key("k"));
  CHECK(!store.delete_key("k"));
  CHECK(store.list_keys() == std::vector<std::string>{"n"});
}

TEST_CASE("SharedStore: a queue keeps its order, and waits for its next element") {
  SharedStore store;
  CHECK(!store.try_queue_pop("q"));
  store.queue_push("q", "1");
  store.queue_push("q", "2");
  CHECK(store.queue_len("q") == 2);
  CHECK(store.queue_pop("q") == "1");
  CHECK(store.try_queue_pop("q") == "2");
  std::string late;
  std::thread waiter(
      [&, own = std::shared_ptr<store::Store>(store.clone())] { late = own->queue_pop("q"); });
  store.queue_push("q", "3");
  waiter.join();
  CHECK(late == "3");
}

TEST_CASE("SharedStore: waits have deadlines, and end when the test breaks the connection") {
  SharedStore store;
  store.set_timeout(10ms);
  CHECK(code_of([&] { store.get("never"); }) == ErrorCode::kTimeout);
  CHECK(code_of([&] { store.queue_pop("never"); }) == ErrorCode::kTimeout);
  CHECK(store.num_requests() == 2);
  std::optional<ErrorCode> code;
  std::thread waiter([&, own = std::shared_ptr<store::Store>(store.clone())] {
    own->set_timeout(30s);
    code = code_of([&] { own->wait({"never"}); });
  });
  store.break_connections();
  waiter.join();
  CHECK(code == ErrorCode::kConnectionLost);
  CHECK(code_of([&] { store.set("k", "v"); }) == ErrorCode::kConnectionLost);
}
