// SPDX-License-Identifier: Apache-2.0
// Pages that wait until the rows they show are kept, with a journal that does not answer.
#include "rendezvous/daemon/shared_page.h"

#include <poll.h>

#include <boost/asio/post.hpp>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/daemon/daemon.h"
#include "rendezvous/messages/codec.h"
#include "tests/rendezvous/daemon/served_daemon.h"
#include "tests/rendezvous/daemon/shelf.h"
#include "tests/rendezvous/daemon/test_agent.h"
#include "tests/support/catch.h"

namespace ddprun::rendezvous {
namespace {

using ddprun::test::Contains;
using namespace std::chrono_literals;
using testing::ServedDaemon;

TEST_CASE(
    "WaitingPages: pages and their bytes are limited, and a place is given up with its page") {
  WaitingPages pages({.num = 3, .bytes = 100});
  auto large = pages.admit(1000);  // a page alone may have any size
  REQUIRE(large);
  CHECK_FALSE(pages.admit(1));
  large.reset();
  std::vector<WaitingPages::Place> places{pages.admit(50), pages.admit(40)};
  CHECK_FALSE(pages.admit(11));
  places.push_back(pages.admit(1));
  CHECK_FALSE(pages.admit(1));
  CHECK(pages.num() == 3);
  places.clear();
  CHECK(pages.num() == 0);
}

// A leading daemon over a shared journal, which is a shelf.
class ShelvedDaemon {
 public:
  explicit ShelvedDaemon(std::size_t most_pages) : served(options(most_pages)) {
    std::promise<void> leads;
    boost::asio::post(served.io(), [&] {
      served.daemon().lead({std::make_unique<testing::ShelfWriter>(shelf), journal::Content{},
                            [](const std::string&) {}});
      leads.set_value();
    });
    REQUIRE(leads.get_future().wait_for(30s) == std::future_status::ready);
  }
  ~ShelvedDaemon() { shelf->shut(false); }
  static std::string request() { return "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"; }
  UniqueFd ask() {
    UniqueFd connection = served.connect();
    send_all(connection.get(), request().data(), request().size(), Deadline::after(5s));
    return connection;
  }

  const std::shared_ptr<testing::Shelf> shelf = std::make_shared<testing::Shelf>();
  ServedDaemon served;

 private:
  static DaemonOptions options(std::size_t most_pages) {
    DaemonOptions options;
    options.stands_by = true;
    options.waiting_pages.num = most_pages;
    return options;
  }
};

std::string hello_of_a_node() {
  membership::AgentEnvelope envelope;
  envelope.message = testing::make_join("a", 2);
  return testing::text_frame(membership::encode(envelope));
}

TEST_CASE(
    "Daemon: a limited number of pages waits for its journal, others are told to come again") {
  ShelvedDaemon daemon(2);
  daemon.shelf->shut(true);
  const UniqueFd agent = daemon.served.upgrade();
  const std::string hello = hello_of_a_node();
  send_all(agent.get(), hello.data(), hello.size(), Deadline::after(5s));
  const auto has_job = [&] {
    return daemon.served.exchange("GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
               .find("\"jobs\":{\"live\":1") != std::string::npos;
  };
  const Deadline deadline = Deadline::after(10s);
  while (!has_job()) REQUIRE_FALSE(deadline.expired());

  std::vector<UniqueFd> asked;
  std::vector<pollfd> polled;
  for (int i = 0; i < 3; ++i) {
    asked.push_back(daemon.ask());
    polled.push_back({asked.back().get(), POLLIN, 0});
  }
  REQUIRE(::poll(polled.data(), polled.size(), 10'000) == 1);  // two of them wait
  std::vector<std::string> answers;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents != 0) answers.push_back(ServedDaemon::read_all(asked[i]));
  }
  REQUIRE(answers.size() == 1);
  CHECK_THAT(answers[0], Contains("503 Service Unavailable") &&
                             Contains("2 requests wait already for their answers") &&
                             !Contains("ddprun-standby"));
  daemon.shelf->shut(false);
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents == 0) {
      CHECK_THAT(ServedDaemon::read_all(asked[i]),
                 Contains("200 OK") && Contains("\"run_id\":\"job\""));
    }
  }
  CHECK_THAT(daemon.served.exchange(ShelvedDaemon::request()), Contains("200 OK"));
}

}  // namespace
}  // namespace ddprun::rendezvous
