// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "agent/warden/protocol.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/flood_limit.h"
#include "common/progress_page.h"
#include "common/random_id.h"
#include "common/socket.h"
#include "common/text.h"
#include "common/unique_fd.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr std::chrono::seconds kHelloTimeout{10};
// The pause when no descriptor is left for a connection.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr int kEventsAtOnce = 20;
constexpr std::size_t kConnectionsPerWorker = 4;

// This agent's directory with a listening socket in it.
class SocketFile {
 public:
  explicit SocketFile(const std::string& directory)
      : directory_(directory), path_(AgentSocket::path_in(directory)) {
    lock_ = make_locked_directory(directory_);
    fd_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const bool listens =
        fd_ && ::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        ::chmod(path_.c_str(), S_IRUSR | S_IWUSR) == 0 && ::listen(fd_.get(), SOMAXCONN) == 0;
    if (listens) return;
    const int error = errno;
    remove();
    throw_system_error("the workers' socket " + path_, error);
  }
  ~SocketFile() { remove(); }

  int fd() const { return fd_.get(); }
  const std::string& directory() const { return directory_; }
  const std::string& path() const { return path_; }

 private:
  // Removes the directory with the error files that workers left in it.
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  const std::string directory_, path_;
  UniqueFd lock_;
  UniqueFd fd_;
};

bool is_our_user(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// Sends one message. If there is no room for it, the peer doesn't read, and gets none.
bool send_with_memory(int fd, const std::string& line, int memory) {
  return send_with_fd(fd, line, memory) == static_cast<long>(line.size());
}

struct Connection {
  Connection(boost::asio::io_context& io, int fd) : socket(io, fd), hello_timer(io) {}
  stream_descriptor socket;
  boost::asio::steady_timer hello_timer;
  std::string pending;            // the bytes of an unfinished line
  std::optional<int> local_rank;  // set: it has said hello
  bool has_no_place = false;      // it came before its node had a place
  bool waits_for_place = false;   // it has said that it waits for a place
  std::uint64_t round = 0;        // as its hello says
  bool offers_recovery = false;
  bool asks_to_recover = false;
  bool keeps_record = false;
  // Numbers of the last record request that was sent on this connection, and of the last one that
  // was answered, or whose time is over.
  std::uint64_t asked = 0, answered = 0;
  FloodLimit events{kEventsAtOnce, 1};  // some at once, then one a second

  bool owes_record() const { return answered < asked; }
  // False: no such request is open. A failure's record stays, so it answers every request.
  bool take_answer(std::uint64_t number) {
    if (number == 0) number = asked;
    if (number <= answered || number > asked) return false;
    answered = number;
    return true;
  }
};
using ConnectionPtr = std::shared_ptr<Connection>;  // shared with its reads under way

constexpr std::string_view kPrefix = "ddprun-";
constexpr std::size_t kDigits = 12;
// A temporary directory with more entries than this is not searched for leftovers.
constexpr int kMostEntries = 10'000;

bool is_directory_name(std::string_view name) {
  if (name.size() != kPrefix.size() + kDigits || !name.starts_with(kPrefix)) return false;
  return name.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string_view::npos;
}

UniqueFd open_directory(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

class AgentSocket::Impl : public std::enable_shared_from_this<AgentSocket::Impl> {
 public:
  Impl(boost::asio::io_context& io, ProgressPages& pages, const std::string& directory,
       AgentSocketEvents events)
      : io_(io),
        pages_(pages),
        events_(std::move(events)),
        file_(std::in_place, directory),
        listener_(io),
        pause_(io),
        record_timer_(io) {
    UniqueFd listener(::fcntl(file_->fd(), F_DUPFD_CLOEXEC, 0));
    if (!listener) throw_system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
    listener_.assign(listener.get());
    listener.release();
  }

  const std::string& path() const { return file_->path(); }
  const std::string& directory() const { return file_->directory(); }

  // Sends the variables to those connections of the worker for which `waits` is true.
  bool assign(int local_rank, const std::vector<std::string>& environment,
              bool Connection::*waits) {
    const std::string line = assign_line(environment);
    bool is_sent = false;
    for (const ConnectionPtr& each : connections_) {
      if (!((*each).*waits) || each->local_rank != local_rank) continue;
      (*each).*waits = false;
      is_sent |= send_with_memory(each->socket.native_handle(), line, -1);
    }
    return is_sent;
  }

  bool any_has(int local_rank, bool Connection::*what) const {
    return std::any_of(connections_.begin(), connections_.end(), [&](const ConnectionPtr& each) {
      return (*each).*what && each->local_rank == local_rank;
    });
  }

  void end_old_round() {
    std::vector<ConnectionPtr> old;
    for (const ConnectionPtr& each : connections_) {
      if (each->local_rank && each->round != pages_.round()) old.push_back(each);
    }
    for (const ConnectionPtr& each : old) drop(each);
  }

  void wait_for_workers() {
    when_readable(listener_, [self = shared_from_this()] {
      if (!self->closed_) self->accept_all();
    });
  }

  void read_pending() {
    const std::vector<ConnectionPtr> all(connections_.begin(), connections_.end());
    for (const ConnectionPtr& connection : all) {
      constexpr int kMostReads = 256;  // 1 MiB; a socket's buffer holds less
      for (int reads = 0; reads < kMostReads && has_bytes(connection); ++reads) read(connection);
    }
  }

  void ask_for_records() {
    const std::string line = dump_line(++num_record_requests_);
    for (const ConnectionPtr& each : connections_) {
      if (!each->keeps_record || each->has_no_place) continue;
      if (!send_with_memory(each->socket.native_handle(), line, -1)) continue;
      each->asked = num_record_requests_;
    }
    run_after(record_timer_, kRecordTime, [self = shared_from_this()] {
      if (!self->closed_) self->forgive_records();
    });
  }

  void when_recorded(std::function<void()> call) {
    recorded_ = std::move(call);
    tell_if_recorded();
  }

  void close() {
    closed_ = true;
    error_code ignored;
    listener_.close(ignored);
    pause_.cancel();
    record_timer_.cancel();
    recorded_ = nullptr;
    close_connections();
    file_.reset();
  }

 private:
  void tell_if_recorded() {
    if (!recorded_) return;
    for (const ConnectionPtr& each : connections_) {
      if (each->owes_record()) return;
    }
    std::exchange(recorded_, nullptr)();
  }

  // Called at the deadline: the missing records count as answered.
  void forgive_records() {
    for (const ConnectionPtr& each : connections_) {
      const bool owed = each->owes_record();
      each->answered = each->asked;
      if (!owed || !recorded_) continue;
      say_once(concat("local rank ", *each->local_rank,
                      " did not write its flight recorder within ", kRecordTime.count(), " ms"));
    }
    tell_if_recorded();
  }

  bool has_bytes(const ConnectionPtr& connection) const {
    int count = 0;
    return connections_.contains(connection) &&
           ::ioctl(connection->socket.native_handle(), FIONREAD, &count) == 0 && count > 0;
  }

  void accept_all() {
    for (;;) {
      UniqueFd fd(::accept4(file_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd) {
        take_in(std::move(fd));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return wait_for_workers();
      } else if (errno != EINTR && errno != ECONNABORTED) {
        return accept_later();
      }
    }
  }

  void accept_later() {
    say_once("no descriptor for a worker's connection: " + errno_text(errno));
    run_after(pause_, kAcceptPause, [self = shared_from_this()] {
      if (!self->closed_) self->accept_all();
    });
  }

  void take_in(UniqueFd fd) {
    if (!is_our_user(fd.get())) return say_once("refused a process of another user");
    const auto most = kConnectionsPerWorker * (static_cast<std::size_t>(pages_.num_workers()) + 1);
    if (connections_.size() >= most) {
      send_with_memory(fd.get(), refused_line("too many connections"), -1);
      return say_once(concat("more than ", most, " connections of workers: refused"));
    }
    const auto connection = std::make_shared<Connection>(io_, fd.get());
    fd.release();
    connections_.insert(connection);
    run_after(connection->hello_timer, kHelloTimeout, [self = shared_from_this(), connection] {
      if (self->closed_ || connection->local_rank) return;
      self->refuse(connection, "no hello");
    });
    wait_for_lines(connection);
  }

  void wait_for_lines(const ConnectionPtr& connection) {
    when_readable(connection->socket, [self = shared_from_this(), connection] {
      if (self->closed_) return;
      if (self->read(connection)) self->wait_for_lines(connection);
    });
  }

  // Reads at most 4 KiB, without waiting. False: the connection has ended.
  bool read(const ConnectionPtr& connection) {
    std::array<char, kMaxAgentLineBytes> buffer;
    const ssize_t size = ::read(connection->socket.native_handle(), buffer.data(), buffer.size());
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (size <= 0) {
      drop(connection);
      return false;
    }
    connection->pending.append(buffer.data(), static_cast<std::size_t>(size));
    std::size_t begin = 0;
    for (std::size_t end; (end = connection->pending.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      if (!hear(connection, std::string_view(connection->pending).substr(begin, end - begin))) {
        return false;
      }
    }
    connection->pending.erase(0, begin);
    if (connection->pending.size() < kMaxAgentLineBytes) return true;
    refuse(connection, "a line of more than 4096 bytes");
    return false;
  }

  // Handles a line. False: the connection has ended.
  bool hear(const ConnectionPtr& connection, std::string_view text) {
    WorkerLine line;
    try {
      line = parse_worker_line(text);
    } catch (const Error& error) {
      refuse(connection, error.what());
      return false;
    }
    if (const auto* hello = variants::get_if<Hello>(&line)) return welcome(connection, *hello);
    if (!connection->local_rank) {
      refuse(connection, "the first message is not hello");
      return false;
    }
    const int local_rank = *connection->local_rank;
    if (variants::holds_alternative<WaitForPlace>(line)) {
      connection->waits_for_place = connection->has_no_place;
      events_.said(local_rank, line);
    } else if (variants::holds_alternative<KeepsRecord>(line)) {
      connection->keeps_record = true;
    } else if (variants::holds_alternative<OffersRecovery>(line)) {
      connection->offers_recovery = true;
    } else if (variants::holds_alternative<AsksToRecover>(line)) {
      connection->asks_to_recover = true;
      events_.said(local_rank, line);
    } else if (const auto* recorded = variants::get_if<Recorded>(&line);
               recorded != nullptr && connection->take_answer(recorded->number)) {
      events_.said(local_rank, line);
      tell_if_recorded();
    } else if (!connection->events.admit(Clock::now())) {
      say_once(concat("local rank ", local_rank, " sends too many events: some are dropped"));
    } else if (const auto* unknown = variants::get_if<UnknownLine>(&line)) {
      say_once("ignored a worker's event of an unknown type: " + unknown->type);
    } else {
      events_.said(local_rank, line);
    }
    return connections_.contains(connection);  // the line may have ended the round
  }

  bool welcome(const ConnectionPtr& connection, const Hello& hello) {
    std::string problem;
    if (hello.version != static_cast<int>(kProgressVersion)) {
      problem = concat("version ", hello.version, " is not ", kProgressVersion);
    } else if (hello.round != pages_.round()) {
      problem = concat("round ", hello.round, " is not the current one");
    } else if (hello.local_rank >= pages_.num_workers()) {
      problem = concat("there is no local rank ", hello.local_rank);
    } else if (connection->local_rank) {
      problem = "hello was said already";
    }
    if (problem.empty() && !send_with_memory(connection->socket.native_handle(), welcome_line(),
                                             pages_.memory(hello.local_rank))) {
      drop(connection);
      return false;
    }
    if (!problem.empty()) {
      refuse(connection, problem);
      return false;
    }
    connection->local_rank = hello.local_rank;
    connection->has_no_place = hello.round == 0;
    connection->round = hello.round;
    connection->hello_timer.cancel();
    if (hello.observes) {
      events_.said(hello.local_rank, hello);
    } else {
      pages_.set_connected(hello.local_rank);
    }
    return true;
  }

  void refuse(const ConnectionPtr& connection, const std::string& why) {
    send_with_memory(connection->socket.native_handle(), refused_line(why), -1);
    say_once("ended a worker's connection: " + one_line(why));
    drop(connection);
  }

  void drop(const ConnectionPtr& connection) {
    error_code ignored;
    connection->hello_timer.cancel();
    connection->socket.close(ignored);
    connections_.erase(connection);
    tell_if_recorded();
  }

  void close_connections() {
    while (!connections_.empty()) drop(ConnectionPtr(*connections_.begin()));
  }

  // Tells the user a few different lines per round: workers must not flood the terminal through
  // this.
  void say_once(const std::string& text) {
    constexpr std::size_t kMostLines = 8;
    if (said_.size() < kMostLines && said_.insert(text).second) {
      events_.tell(LogLevel::kWarning, "the workers' socket: " + text);
    }
  }

  boost::asio::io_context& io_;
  ProgressPages& pages_;
  const AgentSocketEvents events_;
  std::optional<SocketFile> file_;  // empty: closed
  stream_descriptor listener_;
  boost::asio::steady_timer pause_;
  boost::asio::steady_timer record_timer_;  // for the records asked for last
  std::uint64_t num_record_requests_ = 0;
  std::function<void()> recorded_;  // set: a caller waits for the answers
  std::set<ConnectionPtr> connections_;
  std::set<std::string> said_;
  bool closed_ = false;
};

std::string AgentSocket::new_directory(const std::string& parent) {
  const std::string whole =
      new_directory_name(std::filesystem::absolute(parent).string());  // workers may chdir
  const std::size_t size = whole.size() + 1 + std::string_view(warden::kSocketName).size();
  return size < sizeof sockaddr_un::sun_path ? whole : new_directory_name("/tmp");
}

std::string AgentSocket::path_in(const std::string& directory) {
  return directory + "/" + warden::kSocketName;
}

AgentSocket::AgentSocket(boost::asio::io_context& io, ProgressPages& pages,
                         const std::string& directory, AgentSocketEvents events)
    : impl_(std::make_shared<Impl>(io, pages, directory, std::move(events))) {
  impl_->wait_for_workers();
}

AgentSocket::~AgentSocket() { impl_->close(); }

void AgentSocket::ask_for_records() { impl_->ask_for_records(); }

void AgentSocket::when_recorded(std::function<void()> call) {
  impl_->when_recorded(std::move(call));
}

void AgentSocket::read_pending() { impl_->read_pending(); }

bool AgentSocket::waits_for_place(int local_rank) const {
  return impl_->any_has(local_rank, &Connection::waits_for_place);
}

bool AgentSocket::offers_recovery(int local_rank) const {
  return impl_->any_has(local_rank, &Connection::offers_recovery);
}

bool AgentSocket::asks_to_recover(int local_rank) const {
  return impl_->any_has(local_rank, &Connection::asks_to_recover);
}

bool AgentSocket::go_on(int local_rank, const std::vector<std::string>& environment) {
  return impl_->assign(local_rank, environment, &Connection::asks_to_recover);
}

void AgentSocket::end_old_round() { impl_->end_old_round(); }

bool AgentSocket::assign(int local_rank, const std::vector<std::string>& environment) {
  return impl_->assign(local_rank, environment, &Connection::waits_for_place);
}

const std::string& AgentSocket::path() const { return impl_->path(); }

const std::string& AgentSocket::directory() const { return impl_->directory(); }

std::string new_directory_name(const std::string& parent) {
  return parent + "/" + std::string(kPrefix) + random_id().substr(0, kDigits);
}

UniqueFd make_locked_directory(const std::string& path) {
  for (;;) {
    if (::mkdir(path.c_str(), S_IRWXU) != 0) throw_system_error("mkdir " + path, errno);
    // Before the directory is locked, another agent may take it for a leftover. It then holds the
    // lock until it has removed it.
    UniqueFd directory = open_directory(path);
    if (!directory && errno != ENOENT) throw_system_error("open " + path, errno);
    struct stat info {};
    const bool is_there =
        directory && (::flock(directory.get(), LOCK_EX) != 0 ||
                      (::fstat(directory.get(), &info) == 0 && info.st_nlink > 0));
    if (is_there) return directory;
  }
}

void remove_leftover_directories(const std::string& parent) {
  std::error_code error;
  std::filesystem::directory_iterator entry(parent, error);
  for (int seen = 0;
       !error && entry != std::filesystem::directory_iterator() && seen < kMostEntries;
       entry.increment(error), ++seen) {
    if (!is_directory_name(entry->path().filename().string())) continue;
    const UniqueFd directory = open_directory(entry->path().string());
    struct stat info {};
    const bool is_ours =
        directory && ::fstat(directory.get(), &info) == 0 && info.st_uid == ::geteuid();
    if (!is_ours || ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(entry->path(), ignored);
  }
}

}  // namespace ddprun::agent
