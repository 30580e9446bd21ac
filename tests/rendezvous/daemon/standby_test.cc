// SPDX-License-Identifier: Apache-2.0
// A daemon that is one of several: its answers while it stands by, leads, and leads no more.
#include <boost/asio/post.hpp>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rendezvous/daemon/daemon.h"
#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using ddprun::test::Contains;
using testing::ServedDaemon;
using testing::text_frame;

// The place to which all daemons of a test write. The last one that got a writer leads.
struct Shelf {
  std::mutex mutex;
  journal::Rows rows;
  int leader = 0;
};

class ShelfWriter : public journal::BatchWriter {
 public:
  ShelfWriter(std::shared_ptr<Shelf> shelf, int number)
      : shelf_(std::move(shelf)), number_(number) {}
  void commit(const journal::Batch& batch) override {
    const std::lock_guard lock(shelf_->mutex);
    if (shelf_->leader != number_) throw journal::Deposed("another one leads");
    journal::apply_batch(batch, shelf_->rows);
  }
  std::string name() const override { return "the shelf"; }

 private:
  const std::shared_ptr<Shelf> shelf_;  // second owner: the test
  const int number_;
};

class Candidate {
 public:
  explicit Candidate(std::shared_ptr<Shelf> shelf)
      : served(standing_by()), shelf_(std::move(shelf)) {}
  void lead() {
    const std::lock_guard lock(shelf_->mutex);
    const int number = ++shelf_->leader;
    journal::Content content;
    content.rows = shelf_->rows;
    on_io_thread([&] {
      served.daemon().lead({std::make_unique<ShelfWriter>(shelf_, number), content,
                            [this](const std::string& why) { deposed.set_value(why); }});
    });
  }
  void stand_by(const std::string& leader) {
    on_io_thread([&] { served.daemon().stand_by(leader); });
  }
  std::string get(const std::string& path) {
    return served.exchange("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }

  ServedDaemon served;
  std::promise<std::string> deposed;

 private:
  static DaemonOptions standing_by() {
    DaemonOptions options;
    options.stands_by = true;
    return options;
  }
  void on_io_thread(const std::function<void()>& call) {
    std::promise<void> done;
    boost::asio::post(served.io(), [&] {
      call();
      done.set_value();
    });
    REQUIRE(done.get_future().wait_for(30s) == std::future_status::ready);
  }

  const std::shared_ptr<Shelf> shelf_;  // second owners: the writers
};

std::string join_frame(const std::string& session) {
  membership::AgentEnvelope envelope;
  membership::Join join = testing::make_join("a", 1);
  join.session = session;
  envelope.message = join;
  return text_frame(membership::encode(envelope));
}

TEST_CASE("Standby: it says who leads, to agents and for pages, and has no store") {
  Candidate candidate(std::make_shared<Shelf>());
  CHECK_THAT(candidate.served.exchange(testing::kUpgrade),
             Contains("503") && Contains("ddprun-standby: \r\n"));
  candidate.stand_by("other:29400");
  CHECK_THAT(candidate.served.exchange(testing::kUpgrade),
             Contains("503") && Contains("ddprun-standby: other:29400\r\n"));
  CHECK_THAT(candidate.get("/v1/jobs"), Contains("503") && Contains("other:29400 leads"));
  CHECK_THAT(candidate.get("/healthz"), Contains("200 OK"));
  CHECK_THAT(candidate.get("/readyz"),
             Contains("503") && Contains("not ready: it stands by\n") && !Contains("other:29400"));
  CHECK_THAT(candidate.get("/v1/status"),
             Contains("\"role\":\"standby\"") && Contains("\"leader\":\"other:29400\""));
  // A store's client is closed at once.
  CHECK(candidate.served.exchange(std::string(1, '\0')).empty());
}

TEST_CASE("Standby: it leads when it is its turn, and answers as any rendezvous") {
  Candidate candidate(std::make_shared<Shelf>());
  candidate.stand_by("other:29400");
  candidate.lead();
  CHECK_THAT(candidate.get("/v1/jobs"), Contains("200 OK") && Contains("\"jobs\":[]"));
  CHECK_THAT(candidate.get("/readyz"), Contains("200 OK") && Contains("\r\n\r\nok\n"));
  CHECK_THAT(candidate.get("/v1/status"), Contains("\"role\":\"leader\""));
  CHECK_THAT(candidate.served.exchange(testing::kUpgrade), Contains("101 Switching Protocols"));
}

TEST_CASE("Standby: a deposed leader ends its agents' connections and forgets its jobs") {
  Candidate candidate(std::make_shared<Shelf>());
  candidate.lead();
  const UniqueFd agent = candidate.served.upgrade();
  candidate.stand_by("other:29400");
  CHECK_THAT(ServedDaemon::read_all(agent), !Contains("<still open>"));
  CHECK_THAT(candidate.get("/v1/jobs"), Contains("503"));
  candidate.lead();
  CHECK_THAT(candidate.get("/v1/jobs"), Contains("\"jobs\":[]"));
}

// A node with a session would have to end, if a daemon that doesn't know the session told it.
TEST_CASE("Standby: one that was deposed and does not know it yet refuses nobody") {
  const auto shelf = std::make_shared<Shelf>();
  Candidate first(shelf), second(shelf);
  first.lead();
  CHECK_THAT(first.served.exchange_frames(join_frame("unknown")), Contains("refused"));
  second.lead();
  const UniqueFd agent = first.served.upgrade();
  const std::string frame = join_frame("of-the-second");
  send_all(agent.get(), frame.data(), frame.size(), Deadline::after(5s));
  auto deposed = first.deposed.get_future();
  REQUIRE(deposed.wait_for(30s) == std::future_status::ready);
  CHECK(deposed.get() == "another one leads");
  first.stand_by("second:29400");
  CHECK_THAT(ServedDaemon::read_all(agent), !Contains("refused") && !Contains("<still open>"));
}

}  // namespace
}  // namespace ddprun::rendezvous
