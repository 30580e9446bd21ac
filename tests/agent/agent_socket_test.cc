// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include "common/log_level.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temp_directory.h"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

constexpr std::chrono::seconds kPatience{20};

// An agent's socket with `num_workers` in round 1, and what it heard.
struct Rig {
  explicit Rig(int num_workers = 2) {
    pages.begin_round(1, num_workers);
    AgentSocketEvents events;
    events.said = [this](int local_rank, const WorkerLine& line) {
      said.emplace_back(local_rank, line);
    };
    events.tell = [this](LogLevel, const std::string& text) { told.push_back(text); };
    socket = std::make_unique<AgentSocket>(io, pages, AgentSocket::new_directory(directory.path()),
                                           std::move(events));
  }

  bool wait_for(const std::function<bool()>& condition) {
    const auto deadline = Deadline::after(kPatience);
    while (!condition()) {
      if (deadline.expired()) return false;
      io.restart();
      io.run_one_for(std::chrono::milliseconds(50));
    }
    return true;
  }
  bool was_told(const std::string& part) const {
    return std::any_of(told.begin(), told.end(),
                       [&](const auto& line) { return line.find(part) != std::string::npos; });
  }

  test::TempDirectory directory;
  boost::asio::io_context io;
  ProgressPages pages;
  std::vector<std::pair<int, WorkerLine>> said;
  std::vector<std::string> told;
  std::unique_ptr<AgentSocket> socket;
};

// A worker that speaks the protocol by hand.
class Peer {
 public:
  explicit Peer(Rig& rig) : rig_(rig), fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, rig.socket->path().c_str(), sizeof address.sun_path - 1);
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  }

  void say(const std::string& text) {
    const ssize_t sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    (void)sent;  // some tests are about a connection that the agent has ended
  }
  // The next answer; empty: the connection ended. A passed descriptor goes to `memory`.
  std::string hear() {
    REQUIRE(rig_.wait_for([this] {
      pollfd poll{fd_.get(), POLLIN, 0};
      return ::poll(&poll, 1, 0) > 0;
    }));
    std::array<char, 4096> text;
    iovec part{text.data(), text.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      memory.reset(fd);
    }
    return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "";
  }
  std::string greet(int round = 1, int local_rank = 0, int version = 1) {
    say(concat(R"({"type":"hello","version":)", version, R"(,"round":)", round, R"(,"local_rank":)",
               local_rank, "}\n"));
    return hear();
  }

  UniqueFd memory;

 private:
  Rig& rig_;
  UniqueFd fd_;
};

const std::string kWelcome = "{\"type\":\"welcome\",\"version\":1}\n";

}  // namespace

TEST_CASE("agent socket: a worker gets its own page, and both sides see what is written") {
  Rig rig;
  Peer worker(rig);
  CHECK_FALSE(rig.pages.read(1).connected);
  CHECK(worker.greet(1, 1) == kWelcome);
  REQUIRE(worker.memory.valid());
  CHECK(rig.pages.read(1).connected);
  CHECK_FALSE(rig.pages.read(0).connected);
  auto* page = static_cast<ProgressPage*>(::mmap(
      nullptr, kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, worker.memory.get(), 0));
  REQUIRE(page != MAP_FAILED);
  page->step = 5;
  CHECK(rig.pages.read(1).step == 5);
  CHECK(rig.pages.read(0).step == 0);
  rig.pages.request_stop(StopRequest::kPreemption, Clock::now());
  CHECK(page->stop_request == 1);
  ::munmap(page, kProgressPageBytes);
}

TEST_CASE("agent socket: events arrive with the rank of their worker, in pieces or at once") {
  Rig rig;
  Peer worker(rig);
  REQUIRE(worker.greet(1, 1) == kWelcome);
  worker.say("{\"type\":\"first_step\",\"step\":3}\n{\"type\":\"exclude_node\",\"rea");
  REQUIRE(rig.wait_for([&] { return rig.said.size() == 1; }));
  worker.say("son\":\"bad\"}\n");
  REQUIRE(rig.wait_for([&] { return rig.said.size() == 2; }));
  CHECK(rig.said[0].first == 1);
  CHECK(variants::get<FirstStep>(rig.said[0].second).step == 3);
  CHECK(variants::get<ExcludeNode>(rig.said[1].second).reason == "bad");

  worker.say("{\"type\":\"of a later version\"}\n{\"type\":\"first_step\",\"step\":4}\n");
  REQUIRE(rig.wait_for([&] { return rig.said.size() == 3; }));
  CHECK(rig.was_told("unknown type: of a later version"));
}

TEST_CASE("agent socket: a first message that is no valid hello is refused, a second hello, too") {
  Rig rig;
  CHECK(Peer(rig).greet(2, 0).starts_with("{\"type\":\"refused\""));
  CHECK(Peer(rig).greet(1, 2).starts_with("{\"type\":\"refused\""));
  CHECK(Peer(rig).greet(1, 0, 9).starts_with("{\"type\":\"refused\""));
  Peer twice(rig);
  CHECK(twice.greet() == kWelcome);
  CHECK(twice.greet().starts_with("{\"type\":\"refused\""));
  for (const char* text : {"{\"type\":\"first_step\",\"step\":1}\n", "not json\n", "{}\n"}) {
    CAPTURE(text);
    Peer peer(rig);
    peer.say(text);
    CHECK(peer.hear().starts_with("{\"type\":\"refused\""));
    CHECK(peer.hear().empty());
  }
  CHECK(rig.said.empty());
  CHECK_FALSE(rig.pages.read(1).connected);
}

TEST_CASE("agent socket: an endless line, a flood of events and too many connections are bounded") {
  Rig rig(1);
  Peer endless(rig);
  REQUIRE(endless.greet() == kWelcome);
  endless.say(std::string(8000, 'x'));
  CHECK(endless.hear().starts_with("{\"type\":\"refused\""));

  Peer flood(rig);
  REQUIRE(flood.greet() == kWelcome);
  for (int i = 0; i < 300; ++i) flood.say("{\"type\":\"first_step\",\"step\":1}\n");
  REQUIRE(rig.wait_for([&] { return rig.was_told("too many events"); }));
  CHECK(rig.said.size() >= 20);
  CHECK(rig.said.size() <= 40);

  std::vector<std::unique_ptr<Peer>> crowd;
  std::size_t num_welcome = 1;  // flood
  for (int i = 0; i < 20; ++i) {
    crowd.push_back(std::make_unique<Peer>(rig));
    num_welcome += crowd.back()->greet() == kWelcome ? 1 : 0;
  }
  CHECK(num_welcome == 8);
  CHECK(rig.told.size() <= 8);
}

TEST_CASE("agent socket: read_pending() hears what has arrived, before the io context's turn") {
  Rig rig;
  Peer worker(rig);
  REQUIRE(worker.greet() == kWelcome);
  worker.say("{\"type\":\"first_step\",\"step\":3}\n");
  rig.socket->read_pending();
  CHECK(rig.said.size() == 1);
  worker.say("not json\n");
  rig.socket->read_pending();
  CHECK(worker.hear().starts_with("{\"type\":\"refused\""));
  rig.socket->read_pending();
}

TEST_CASE(
    "agent socket: when_recorded() tells once all workers that keep a record have written it") {
  Rig rig;
  Peer keeper(rig), other(rig), goes(rig);
  for (Peer* peer : {&keeper, &other, &goes}) REQUIRE(peer->greet() == kWelcome);
  int num_told = 0;
  const auto count = [&] { ++num_told; };
  rig.socket->ask_for_records();
  rig.socket->when_recorded(count);
  CHECK(num_told == 1);  // no worker keeps a record yet

  keeper.say("{\"type\":\"keeps_record\"}\n");
  goes.say("{\"type\":\"keeps_record\"}\n");
  rig.socket->read_pending();
  rig.socket->ask_for_records();
  CHECK(keeper.hear() == "{\"type\":\"dump\",\"number\":2}\n");
  CHECK(goes.hear() == "{\"type\":\"dump\",\"number\":2}\n");
  rig.socket->when_recorded(count);
  goes.say("no JSON\n");  // which ends its connection
  rig.socket->read_pending();
  CHECK(num_told == 1);
  for (int i = 0; i < 40; ++i) keeper.say("{\"type\":\"first_step\",\"step\":1}\n");
  keeper.say("{\"type\":\"recorded\",\"file\":\"/f\"}\n");  // the message is heard all the same
  rig.socket->read_pending();
  CHECK(num_told == 2);
  REQUIRE(variants::holds_alternative<Recorded>(rig.said.back().second));
  CHECK(variants::get<Recorded>(rig.said.back().second).file == "/f");

  rig.socket->ask_for_records();
  rig.socket->when_recorded(count);
  rig.socket->when_recorded(nullptr);
  keeper.say("{\"type\":\"recorded\",\"file\":\"/f\"}\n");
  rig.socket->read_pending();
  CHECK(num_told == 2);
}

TEST_CASE("agent socket: an answer to an earlier request does not end the wait for the last one") {
  Rig rig;
  Peer keeper(rig);
  REQUIRE(keeper.greet() == kWelcome);
  const auto recorded = [&](const std::string& number) {
    keeper.say("{\"type\":\"recorded\",\"file\":\"/f\"" + number + "}\n");
    rig.socket->read_pending();
  };
  keeper.say("{\"type\":\"keeps_record\"}\n");
  rig.socket->read_pending();
  int num_told = 0;
  const auto count = [&] { ++num_told; };
  rig.socket->ask_for_records();
  CHECK(keeper.hear() == "{\"type\":\"dump\",\"number\":1}\n");
  rig.socket->ask_for_records();  // the first one is being written
  CHECK(keeper.hear() == "{\"type\":\"dump\",\"number\":2}\n");
  rig.socket->when_recorded(count);
  recorded(",\"number\":1");
  CHECK(variants::get<Recorded>(rig.said.back().second).number == 1);
  CHECK(num_told == 0);
  for (const char* number : {",\"number\":1", ",\"number\":3"}) recorded(number);
  CHECK(num_told == 0);
  recorded(",\"number\":2");
  CHECK(num_told == 1);

  rig.socket->ask_for_records();
  rig.socket->ask_for_records();
  rig.socket->when_recorded(count);
  recorded("");  // an operation failed: that file stays
  CHECK(num_told == 2);
}

TEST_CASE("agent socket: a worker that does not answer is waited for no longer than its time") {
  Rig rig;
  Peer keeper(rig);
  REQUIRE(keeper.greet(1, 1) == kWelcome);
  keeper.say("{\"type\":\"keeps_record\"}\n");
  rig.socket->read_pending();
  const auto begun = Clock::now();
  rig.socket->ask_for_records();
  bool is_told = false;
  rig.socket->when_recorded([&] { is_told = true; });
  CHECK_FALSE(is_told);
  REQUIRE(rig.wait_for([&] { return is_told; }));
  CHECK(Clock::now() - begun >= AgentSocket::kRecordTime);
  CHECK(rig.was_told("local rank 1 did not write its flight recorder within 2000 ms"));
  rig.socket->when_recorded([&] { is_told = false; });
  CHECK_FALSE(is_told);  // no worker owes a record any more
}

TEST_CASE("agent socket: it is for its user alone, and nothing stays behind") {
  Rig rig;
  const std::string path = rig.socket->path();
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  REQUIRE(::stat(std::filesystem::path(path).parent_path().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  Peer peer(rig);
  rig.socket.reset();
  CHECK(std::filesystem::is_empty(rig.directory.path()));
}

TEST_CASE("agent socket: a parent directory too long for a socket's path gives way to /tmp") {
  const test::TempDirectory directory;
  const std::string parent = directory.path(std::string(100, 'd'));
  std::filesystem::create_directory(parent);
  boost::asio::io_context io;
  ProgressPages pages;
  const AgentSocket socket(io, pages, AgentSocket::new_directory(parent), {});
  CHECK(socket.path().starts_with("/tmp/ddprun-"));
}
