// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/bootstrap.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "common/byte_text.h"
#include "common/log.h"
#include "common/random_id.h"
#include "common/socket.h"
#include "common/throw_error.h"
#include "rendezvous/store/store_timeout.h"

namespace ddprun::host {
namespace {

constexpr char kRecordVersion[] = "ddprun-host-2";

// Extra time after the deadline to find out who is missing.
constexpr auto kNamingTime = std::chrono::seconds{2};
// Pause while the queue of the first rank's socket is full: nothing tells when there is room again.
constexpr auto kFullQueuePause = std::chrono::milliseconds{10};

sockaddr_un abstract_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

std::string key_of(const HostCommunicatorOptions& options, int rank) {
  return options.key_prefix + "host/" + std::to_string(rank);
}

// Returns "missing: ranks 3, 7".
std::string missing_records(store::Store& store, const std::vector<std::string>& keys) {
  const Deadline deadline = Deadline::after(kNamingTime);
  std::vector<int> missing;
  std::size_t num_asked = 0;
  try {
    for (; num_asked < keys.size() && !deadline.expired(); ++num_asked) {
      const store::StoreTimeout limit(store, deadline);
      if (!store.check({keys[num_asked]})) missing.push_back(static_cast<int>(num_asked));
    }
  } catch (const Error& error) {
    if (missing.empty()) return concat("the store can't say who is missing: ", error.what());
  }
  return concat("missing: rank", missing.size() == 1 ? " " : "s ", listed(missing),
                num_asked < keys.size() ? " and perhaps others" : "");
}

// Returns a connection to an abstract unix socket. Waits while its queue is full.
UniqueFd connect_unix(const std::string& name, int rank, StartWatch& watch, Deadline deadline) {
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(name, &length);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_system_error("unix socket", errno);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error != EAGAIN) {
      watch.connection_ended(rank, concat("it is gone from this node (", errno_text(error),
                                          "), or not in this process's network namespace"));
    }
    watch.look();
    if (deadline.expired()) {
      throw_error(ErrorCode::kTimeout, "rank ", rank, " does not take connections: does it hang?");
    }
    const Deadline pause = Deadline::after(kFullQueuePause);
    ::poll(nullptr, 0, std::min(pause.poll_timeout_ms(), deadline.poll_timeout_ms()));
  }
  return fd;
}

// Longest time until a failure on another node is seen: each node makes a few requests a second.
constexpr auto kAskInterval = std::chrono::milliseconds{250};
// Limit of requests that need no waiting in the store.
constexpr auto kStoreTime = std::chrono::seconds{5};

FailureRecord record_of(FailureKind kind, int rank, const std::string& text) {
  FailureRecord record{.kind = kind, .rank = rank, .text = {}};
  std::memcpy(record.text, text.data(), std::min(text.size(), sizeof record.text - 1));
  return record;
}

std::string encode(const FailureRecord& record) {
  return concat(static_cast<std::uint32_t>(record.kind), " ", record.rank, " ", record.text);
}

FailureRecord decode(const std::string& note) {
  std::istringstream in(note);
  std::uint32_t kind = 0;
  int rank = -1;
  std::string text;
  in >> kind >> rank;
  in.get();
  std::getline(in, text, '\0');
  return record_of(static_cast<FailureKind>(kind), rank, text);
}

Error error_of(const FailureRecord& record) {
  const char* const what = record.kind == FailureKind::kRankLost ? " was lost" : " gave up";
  return {ErrorCode::kPeerLost,
          concat("rank ", record.rank, what, " during start of the communicator: ", record.text)};
}

}  // namespace

std::string PeerRecord::encode() const {
  std::ostringstream out;
  out << kRecordVersion << ' ' << node_rank << ' ' << unix_name << ' ' << to_hex(token) << ' '
      << pid << ' ' << pid_namespace << ' ' << endpoint.port << ' ' << endpoint.host;
  return out.str();
}

PeerRecord PeerRecord::decode(const std::string& text, int rank) {
  std::istringstream in(text);
  PeerRecord record;
  std::string version, token;
  in >> version >> record.node_rank >> record.unix_name >> token >> record.pid;
  in >> record.pid_namespace >> record.endpoint.port;
  if (!in || version != kRecordVersion || !from_hex(token, record.token) ||
      record.unix_name.size() > 90) {
    throw_error(ErrorCode::kProtocol, "rank ", rank,
                " speaks another version of the host "
                "communicator: use the same build on every node");
  }
  in >> record.endpoint.host;
  return record;
}

UniqueFd listen_on_unix(std::string* name) {
  *name = "ddprun-" + random_id();
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_system_error("unix socket", errno);
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(*name, &length);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw_system_error("can't listen on a unix socket", errno);
  }
  return fd;
}

std::vector<PeerRecord> exchange_records(store::Store& store,
                                         const HostCommunicatorOptions& options,
                                         const PeerRecord& own, Deadline deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.size; ++rank) keys.push_back(key_of(options, rank));
  std::vector<std::string> texts;
  try {
    {
      const store::StoreTimeout limit(store, deadline);
      store.set(key_of(options, options.rank), own.encode());
      store.wait(keys);
    }
    const store::StoreTimeout limit(store, deadline);  // the time that is left
    texts = store.multi_get(keys);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    throw_error(ErrorCode::kTimeout, "rank ", options.rank, " waited ",
                options.init_timeout.count(), " ms for the others to make the host communicator; ",
                missing_records(store, keys));
  }
  std::vector<PeerRecord> records;
  for (int rank = 0; rank < options.size; ++rank) {
    records.push_back(PeerRecord::decode(texts[static_cast<std::size_t>(rank)], rank));
  }
  return records;
}

NodeConnections accept_members(UniqueFd listener, const Token& token, const Topology& topology,
                               StartWatch& watch, Deadline deadline) {
  const auto num_local = static_cast<std::size_t>(topology.num_local());
  NodeConnections connections;
  connections.watch.resize(num_local);
  connections.memory.resize(num_local);
  Greeter greeter(std::move(listener), token, topology.rank());
  for (std::size_t open = 2 * (num_local - 1); open > 0;) {
    watch.look();
    std::optional<Arrival> arrival = greeter.accept_one(watch.next_look(deadline), watch.polls());
    if (!arrival) {
      if (!deadline.expired()) continue;
      std::vector<int> missing;
      for (std::size_t i = 1; i < num_local; ++i) {
        if (!connections.watch[i] || !connections.memory[i]) {
          missing.push_back(topology.local_ranks()[i]);
        }
      }
      throw_error(ErrorCode::kTimeout, "ranks of this node did not connect to rank ",
                  topology.rank(), ": missing: ", listed(missing));
    }
    const Hello& hello = arrival->hello;
    if (hello.from >= topology.size() || !topology.same_node(hello.from)) continue;
    const auto local = static_cast<std::size_t>(topology.local_index_of(hello.from));
    auto& list = hello.purpose == Purpose::kMemory ? connections.memory : connections.watch;
    if (list[local]) continue;
    list[local] = std::move(arrival->fd);
    --open;
  }
  return connections;
}

NodeConnections connect_to_first(const std::string& unix_name, const Token& token,
                                 const Topology& topology, StartWatch& watch, Deadline deadline) {
  const int first = topology.local_ranks().front();
  NodeConnections connections;
  for (const Purpose purpose : {Purpose::kWatch, Purpose::kMemory}) {
    UniqueFd fd = connect_unix(unix_name, first, watch, deadline);
    const Hello hello{.token = token, .from = topology.rank(), .to = first, .purpose = purpose};
    try {
      send_all(fd.get(), &hello, sizeof hello, deadline);  // 40 bytes: never waits
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConnectionLost) throw;
      watch.connection_ended(first, error.what());
    }
    (purpose == Purpose::kWatch ? connections.watch : connections.memory).push_back(std::move(fd));
  }
  return connections;
}

void hand_memory(int connection, int memory_fd, int rank, Deadline deadline) {
  while (send_with_fd(connection, "m", memory_fd) != 1) {
    if (errno == EAGAIN) {
      if (wait_ready(connection, POLLOUT, deadline)) continue;
      throw_error(ErrorCode::kTimeout, "rank ", rank, " does not take shared memory");
    }
    if (errno != EINTR) {
      throw_error(ErrorCode::kPeerLost, "rank ", rank, " is gone: ", errno_text(errno));
    }
  }
}

UniqueFd receive_memory(const NodeConnections& connections, const Topology& topology,
                        Deadline deadline) {
  const int fd = connections.memory.front().get();
  const int first = topology.local_ranks().front();
  FdMessage message;
  char byte = 0;
  do {
    if (!wait_ready(fd, POLLIN, deadline)) {
      throw_error(ErrorCode::kTimeout, "no shared memory from rank ", first,
                  " before the deadline");
    }
    message = receive_with_fd(fd, &byte, 1);
  } while (message.size < 0 && (errno == EINTR || errno == EAGAIN));
  if (message.lost_fd) {
    throw_error(ErrorCode::kResourceExhausted, "rank ", topology.rank(),
                " can't take shared memory: it has too many open files (ulimit -n)");
  }
  if (!message.fd) {
    throw_error(ErrorCode::kPeerLost, "rank ", first, ", the first of this node, is gone");
  }
  return std::move(message.fd);
}

std::uint64_t pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

UniqueFd open_pidfd(int pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// A pid may since have been given to another process. That process' end then proves late that the
// rank's own process had ended.
void StartWatch::watch_node(const std::vector<PeerRecord>& records, const Topology& topology) {
  asks_store_ = topology.num_nodes() > 1 && topology.local_index() == 0;
  const std::uint64_t own_namespace = pid_namespace();
  for (const int rank : topology.local_ranks()) {
    const PeerRecord& record = records[static_cast<std::size_t>(rank)];
    if (rank == rank_ || record.pid <= 0 || record.pid_namespace != own_namespace) continue;
    UniqueFd process = open_pidfd(record.pid);
    if (!process && errno == ESRCH) end_by(FailureKind::kRankLost, rank, "its process ended");
    if (!process) continue;
    polls_.push_back({.fd = process.get(), .events = POLLIN, .revents = 0});
    rank_of_.push_back(rank);
    processes_.push_back(std::move(process));
  }
}

void StartWatch::look() {
  if (::poll(polls_.data(), polls_.size(), 0) > 0) {
    for (std::size_t i = 0; i < polls_.size(); ++i) {
      if (polls_[i].revents == 0) continue;
      end_by(FailureKind::kRankLost, rank_of_[i], "its process ended");
    }
  }
  if (asks_store_ && Clock::now() >= next_ask_) ask_store();
}

void StartWatch::ask_store() {
  next_ask_ = Clock::now() + kAskInterval;
  std::string note;
  try {
    const store::StoreTimeout limit(store_, kStoreTime);
    if (!store_.check({key_})) return;
    note = store_.get(key_);
  } catch (const Error& error) {
    log_debug("rank ", rank_, ": the store is silent: ", error.what());
    asks_store_ = false;
    return;
  }
  const FailureRecord record = decode(note);
  end_by(record.kind, record.rank, record.text);
}

bool StartWatch::wait_ready(int fd, short events, Deadline deadline) {
  std::vector<pollfd> all = polls_;
  all.push_back({.fd = fd, .events = events, .revents = 0});
  for (;;) {
    const int ready = ::poll(all.data(), all.size(), next_look(deadline).poll_timeout_ms());
    if (ready > 0 && all.back().revents != 0) return true;
    look();
    if (deadline.expired()) return false;
  }
}

void StartWatch::connection_ended(int rank, const std::string& how) {
  next_ask_ = {};
  look();
  end_by(FailureKind::kRankLost, rank, how);
}

void StartWatch::end_by(FailureKind kind, int rank, const std::string& how) {
  found_ = record_of(kind, rank, how);
  if (group_) group_->post_failure(kind, rank, how);
  throw error_of(*found_);
}

void StartWatch::end_with(const Error& error) {
  FailureRecord own = record_of(FailureKind::kAborted, rank_, error.what());
  if (found_) own = *found_;
  const bool others_know = group_ && group_->failed();
  if (others_know && !found_) own = group_->failure();
  if (group_ && !others_know) group_->post_failure(own.kind, own.rank, own.text);
  // The other ranks' deadlines pass at about the same time, so each says itself which ranks it
  // missed.
  if (error.code() == ErrorCode::kTimeout) throw Error(error);
  std::string first = encode(own);
  try {
    const store::StoreTimeout limit(store_, kStoreTime);
    first = store_.compare_set(key_, "", first);
  } catch (const Error& lost) {
    log_debug("rank ", rank_, ": could not tell the other ranks: ", lost.what());
  }
  if (error.code() != ErrorCode::kPeerLost) throw Error(error);
  throw error_of(decode(first));
}

}  // namespace ddprun::host
