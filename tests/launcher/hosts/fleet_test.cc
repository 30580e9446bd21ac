// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/fleet.h"

#include <csignal>
#include <optional>
#include <utility>

#include "common/log_level.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;
using ddprun::test::Contains;
using std::chrono::seconds;

namespace {

// A fleet whose actions become words: "start0 run0@10.0.0.1 signal1:15 close1 finish75". Each call
// returns the words of its event.
class World : private FleetActions {
 public:
  explicit World(int num_nodes, FleetOptions options = {})
      : fleet_(filled(num_nodes, std::move(options)), *this) {}

  static FleetOptions filled(int num_nodes, FleetOptions options) {
    for (int i = 0; i < num_nodes; ++i) {
      options.nodes.push_back({.name = "n" + std::to_string(i), .where = "--hosts"});
    }
    if (options.min_nodes == 1) options.min_nodes = num_nodes;
    return options;
  }

  std::string begin() { return later(seconds(0)); }
  std::string hello(int node, const channel::Hello& hello) {
    fleet_.hello(node, hello, now_);
    return std::exchange(words_, "");
  }
  std::string hello(int node, const std::string& reached_at = "") {
    return hello(node, {channel::kProtocol, DDPRUN_VERSION, "host", reached_at, ""});
  }
  std::string serving(int node, const std::string& endpoint) {
    fleet_.serving(node, endpoint, now_);
    return std::exchange(words_, "");
  }
  std::string gone(int node, int code, const std::string& text) {
    fleet_.gone(node, code, text, now_);
    return std::exchange(words_, "");
  }
  std::string end(int node, int code, bool by_job = true, const std::string& words = "") {
    fleet_.ended(node, {code, false, by_job, words}, now_);
    return std::exchange(words_, "");
  }
  std::string signalled(int number, bool is_warning = false) {
    fleet_.signalled(number, is_warning, now_);
    return std::exchange(words_, "");
  }
  std::string later(seconds time) {
    now_ += time;
    fleet_.tick(now_);
    return std::exchange(words_, "");
  }
  // Makes all nodes run; node 0 serves.
  void run(int num_nodes) {
    begin();
    for (int i = 0; i < num_nodes; ++i) hello(i, "10.0.0." + std::to_string(i + 1));
    serving(0, "10.0.0.1:5");
    said.clear();
  }

  std::vector<std::string> said;
  std::string last_words;
  std::string reason;
  std::optional<Clock::time_point> deadline;

 private:
  void add(const std::string& word) { words_ += (words_.empty() ? "" : " ") + word; }
  void start(int node) override { add("start" + std::to_string(node)); }
  void run(int node, const std::string& place, bool serves) override {
    add("run" + std::to_string(node) + (serves ? "@" : ">") + place);
  }
  void signal(int node, int number) override {
    add("signal" + std::to_string(node) + ":" + std::to_string(number));
  }
  void close(int node) override { add("close" + std::to_string(node)); }
  void say(LogLevel, const std::string& text) override { said.push_back(text); }
  void wake_at(std::optional<Clock::time_point> time) override { deadline = time; }
  void finish(int exit_code, const std::string& why, const std::string& words) override {
    reason = why;
    last_words = words;
    add("finish" + std::to_string(exit_code));
  }

  Clock::time_point now_{seconds(1000)};
  std::string words_;
  Fleet fleet_;
};

}  // namespace

TEST_CASE("fleet: the first host serves where ssh reached it, the others are told, one result") {
  World world(3);
  CHECK(world.begin() == "start0 start1 start2");
  CHECK(world.hello(1, "10.0.0.2") == "");
  CHECK(world.hello(0, "10.0.0.1") == "run0@10.0.0.1");
  CHECK(world.serving(0, "10.0.0.1:5") == "run1>10.0.0.1:5");
  CHECK(world.hello(2, "10.0.0.3") == "run2>10.0.0.1:5");
  CHECK(world.end(1, 7, true, "report") == "");
  CHECK(world.end(0, 7, true, "report") == "");
  CHECK(world.end(2, 7, true, "report") == "finish7");
  CHECK(world.last_words == "report");
  CHECK_FALSE(world.deadline.has_value());
}

TEST_CASE("fleet: a place that the user named is everybody's at once") {
  World world(2, {.endpoint = "head:29400"});
  world.begin();
  CHECK(world.hello(1) == "run1>head:29400");
  CHECK(world.hello(0) == "run0>head:29400");
}

TEST_CASE("fleet: a limited number of hosts is reached for at once") {
  World world(4, {.fanout = 2, .endpoint = "x:1"});
  CHECK(world.begin() == "start0 start1");
  CHECK(world.hello(1) == "start2 run1>x:1");
  CHECK(world.hello(2) == "start3 run2>x:1");
}

TEST_CASE("fleet: this machine serves where the first other host's ssh came from") {
  FleetOptions options;
  options.nodes = {{.name = "localhost", .where = "--hosts", .is_here = true}};
  World world(1, options);
  world.begin();
  CHECK(world.hello(0) == "");
  channel::Hello hello{channel::kProtocol, DDPRUN_VERSION, "b", "10.0.0.2", "10.0.0.9"};
  CHECK(world.hello(1, hello) == "run0@10.0.0.9");
}

TEST_CASE("fleet: one machine alone is on loopback") {
  FleetOptions options;
  options.nodes = {{.name = "localhost", .where = "--hosts", .is_here = true}};
  World world(0, options);
  world.begin();
  CHECK(world.hello(0) == "run0@127.0.0.1");
}

TEST_CASE("fleet: a rendezvous that only its own host can reach is said, not waited for") {
  World world(2);
  world.begin();
  world.hello(0, "127.0.0.1");
  world.hello(1, "10.0.0.2");
  CHECK(world.serving(0, "127.0.0.1:5") == "signal0:15 close1");
  CHECK(world.end(0, 143) == "finish2");
  CHECK_THAT(world.reason, Contains("n1 can't reach the rendezvous of n0"));
}

TEST_CASE("fleet: a host that can't be reached ends the job with its own words") {
  World world(3);
  world.begin();
  world.hello(0, "10.0.0.1");
  CHECK(world.gone(1, 75, "ssh ended with 255: No route to host") ==
        "close1");  // node 2 has a second to report the same
  CHECK(world.later(seconds(1)) == "signal0:15 close2");
  CHECK(world.end(0, 143, true, "stopped") == "finish75");
  CHECK(world.said.empty());  // the reason has said it once
  CHECK(world.last_words.empty());
  CHECK(world.reason == "n1: ssh ended with 255: No route to host");
}

TEST_CASE("fleet: all hosts that can't be had at the same time are named") {
  World world(4);
  world.begin();
  world.hello(0, "10.0.0.1");
  CHECK(world.gone(1, 75, "no route") == "close1");
  SECTION("they are all known") {
    CHECK(world.hello(2, "10.0.0.3").empty());  // no further node is begun
    CHECK(world.gone(3, 75, "refused") == "close3 signal0:15 close2");
    CHECK(world.end(0, 143) == "finish75");
    CHECK(world.said == std::vector<std::string>{"n1: no route", "n3: refused"});
    CHECK(world.reason == "2 hosts can't be used: n1, n3; n1: no route");
  }
  SECTION("the first signal ends it at once") {
    CHECK(world.signalled(SIGINT) == "signal0:2 close2 close3");
    CHECK(world.end(0, 130) == "finish130");
    CHECK(world.said == std::vector<std::string>{"n1: no route"});
  }
}

TEST_CASE("fleet: a status that a transport hands on is final only before the agent's hello") {
  World world(2);
  if (GENERATE(true, false)) {
    world.run(2);
    CHECK(world.gone(1, 2, "kubectl ended with 137") == "close1");
    CHECK(world.end(0, 143) == "finish75");
  } else {
    world.begin();
    CHECK(world.gone(1, 2, "kubectl ended with 1") == "close1");
    CHECK(world.later(seconds(1)) == "close0 finish2");
  }
}

TEST_CASE("fleet: the job does without a host that can't be reached if enough others are there") {
  World world(3, {.min_nodes = 2});
  world.begin();
  CHECK(world.gone(0, 75, "gone") == "close0");
  CHECK_THAT(world.said.at(0), Contains("the job goes on without it"));
  CHECK(world.hello(1, "10.0.0.2") == "run1@10.0.0.2");
  world.serving(1, "10.0.0.2:5");
  CHECK(world.hello(2, "10.0.0.3") == "run2>10.0.0.2:5");
  world.end(1, 0);
  CHECK(world.end(2, 0) == "finish0");
}

TEST_CASE("fleet: a host that doesn't answer is given up in time") {
  World world(2);
  world.begin();
  world.hello(1, "10.0.0.2");
  REQUIRE(world.deadline.has_value());
  CHECK(world.later(seconds(59)) == "");
  CHECK(world.later(seconds(1)) == "close0 close1 finish75");
  CHECK_THAT(world.reason, Contains("n0: no answer within 60 s (--ssh-timeout)"));
}

TEST_CASE("fleet: another version is no agent") {
  World world(1);
  world.begin();
  CHECK(world.hello(0, {"1", "9.9", "h", "", ""}) == "close0 finish2");
  CHECK_THAT(world.reason, Contains("is version 9.9, here " DDPRUN_VERSION));
}

TEST_CASE("fleet: a ddprun that refuses its part ends the others' at once") {
  World world(3);
  world.run(3);
  CHECK(world.end(1, 2, false) == "signal0:15 signal2:15");
  world.end(0, 143);
  CHECK(world.end(2, 143) == "finish2");
}

TEST_CASE("fleet: the rendezvous says what the loss of a host means, within limits") {
  World world(2);
  world.run(2);
  CHECK(world.gone(1, 75, "ssh ended with 255") == "close1");
  SECTION("it does") {
    CHECK(world.end(0, 75, true, "node 1 was lost") == "finish75");
    CHECK(world.last_words == "node 1 was lost");
  }
  SECTION("it was only the connection, and its ddprun ended by a signal") {
    CHECK(world.end(0, 143, true, "node 1 left: received SIGTERM") == "finish75");
    CHECK(world.reason == "n1: ssh ended with 255");
  }
  SECTION("it doesn't") {
    CHECK(world.later(seconds(10)) == "signal0:15");
    CHECK(world.end(0, 143) == "finish75");
  }
}

TEST_CASE("fleet: a host that comes when the job has ended is not waited for") {
  World world(3, {.min_nodes = 2});
  world.run(3);
  world.end(1, 75);
  world.end(0, 75);
  CHECK(world.later(seconds(49)) == "");
  CHECK(world.later(seconds(1)) == "signal2:15");
  CHECK(world.end(2, 143, false) == "finish75");
}

TEST_CASE("fleet: signals go to all, a third one waits for nobody") {
  World world(2);
  world.run(2);
  CHECK(world.signalled(SIGINT, false) == "signal0:2 signal1:2");
  // The same signal again comes from a wrapper that passes it on.
  CHECK(world.signalled(SIGINT, false) == "");
  // The second signal gets another number, so that it isn't lost beside the first.
  CHECK(world.signalled(SIGINT, false) == "signal0:15 signal1:15");
  CHECK(world.signalled(SIGTERM, false) == "signal0:15 signal1:15 close0 close1 finish130");
}

TEST_CASE("fleet: a signal before any host runs ends it") {
  World world(2);
  world.begin();
  world.hello(1, "10.0.0.2");
  CHECK(world.signalled(SIGTERM, false) == "close0 close1 finish143");
}

TEST_CASE("fleet: agents that don't end after a signal are left in time") {
  World world(2);
  world.run(2);
  world.signalled(SIGINT, false);
  world.end(0, 130);
  CHECK(world.later(seconds(50)) == "close1 finish130");
  CHECK_THAT(world.said.at(0), Contains("n1: its ddprun has not ended in time"));
}

TEST_CASE("fleet: a warning of preemption is passed on, and no more") {
  World world(2);
  world.run(2);
  CHECK(world.signalled(SIGUSR1, true) == "signal0:10 signal1:10");
  CHECK_FALSE(world.deadline.has_value());
}

TEST_CASE("fleet: the job's code is one") {
  CHECK(job_exit_code({}) == 0);
  CHECK(job_exit_code({7, 7}) == 7);
  CHECK(job_exit_code({75, 0, 0}) == 0);  // one node was preempted, the others finished
  CHECK(job_exit_code({75, 3, 3}) == 3);  // one node was preempted, the others failed
  CHECK(job_exit_code({143, 130}) == 143);
}
