// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/peer_watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/error.h"
#include "common/log.h"
#include "common/quiet_thread.h"
#include "common/socket.h"
#include "worker_sdk/core/host/bootstrap.h"

namespace ddprun::host {
namespace {

// Sent over a control connection besides FailureKind's values: the sender destroys its
// communicator.
constexpr auto kGoodbye = static_cast<FailureKind>(100);
// Sent over a control connection, too: the text's place holds a RollCallNote.
constexpr auto kRollCall = static_cast<FailureKind>(101);
constexpr auto kRollCallTime = std::chrono::milliseconds{500};
// Limit for telling other nodes of the end of this node's first rank.
constexpr auto kNewsTime = std::chrono::milliseconds{200};

// A member's one-byte messages to its node's first rank.
constexpr char kFailureNudge = '!';
constexpr char kRollCallNudge = '?';

// Returns the rank's call with this sequence. It is stable while the rank is in that call or the
// one after it.
const CallHeader& call_of(const RankControl& rank, std::uint32_t sequence) {
  return rank.calls[sequence & 1].header;
}

// Adds this node's ranks to the note.
void answer_roll_call(const NodeGroup& group, RollCallNote& note) {
  const std::uint32_t sequence = note.call.sequence;
  for (int local = 0; local < group.num_local(); ++local) {
    const RankControl& rank = group.control(local);
    const std::uint32_t entered = rank.entered.value.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(entered - sequence) < 0) {
      if (note.num_absent < RollCallNote::kMaxNamed) {
        note.absent[note.num_absent] = group.rank_of(local);
      }
      ++note.num_absent;
    } else if (entered == sequence && !(call_of(rank, sequence) == note.call)) {
      note.deviator = group.rank_of(local);
      note.deviation = call_of(rank, sequence);
    }
  }
}

// Returns the note with which a rank of this node asks about the collective that it is in.
RollCallNote begin_roll_call(const NodeGroup& group, int local, std::uint32_t sequence) {
  RollCallNote note;
  note.origin_node = group.topology().node_index();
  note.origin_local = local;
  note.caller = group.rank_of(local);
  note.call = call_of(group.control(local), sequence);
  answer_roll_call(group, note);
  return note;
}

// Gives the note that came back to the rank that asked. First rank's watcher thread only.
void post_roll_call(NodeGroup& group, const RollCallNote& note) {
  if (note.origin_local < 0 || note.origin_local >= group.num_local()) return;
  RollCallAnswer& answer = group.control(note.origin_local).roll_call;
  // If it asked twice the first answer stays, for it may be reading that.
  if (answer.sequence.load(std::memory_order_relaxed) == note.call.sequence) return;
  answer.note = note;
  answer.sequence.store(note.call.sequence, std::memory_order_release);
}

// Returns the answer to this rank about this collective; nullopt: none yet.
std::optional<RollCallNote> read_roll_call(const NodeGroup& group, std::uint32_t sequence) {
  const RollCallAnswer& answer = group.control(group.local_index()).roll_call;
  if (answer.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  return answer.note;
}

}  // namespace

PeerWatcher::PeerWatcher(NodeGroup& group, std::unique_ptr<Greeter> greeter, ArrivalBook& arrivals)
    : group_(group),
      arrivals_(arrivals),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      greeter_(std::move(greeter)) {
  if (!wake_) throw_system_error("eventfd", errno);
  group_.set_failure_listener([this] { announce_failure(); });  // the thread may post failures
  thread_ = start_quiet_thread("ddprun-watch", [this] { run(); });
}

PeerWatcher::~PeerWatcher() {
  if (!group_.failed()) {
    FailureRecord goodbye{.kind = kGoodbye, .rank = group_.topology().rank(), .text = "left"};
    const std::lock_guard lock(mutex_);
    if (!announced_) send_to_nodes(goodbye);
  } else {
    announce_failure();
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void PeerWatcher::wake() { ::eventfd_write(wake_.get(), 1); }

void PeerWatcher::add(Kind kind, int rank, UniqueFd fd) {
  {
    const std::lock_guard lock(mutex_);
    watched_.push_back(std::make_unique<Watched>(kind, rank, std::move(fd)));
    // This connection's node came too late for the news.
    if (announced_ && watched_.back()->is_node()) send_to(*watched_.back(), group_.failure());
  }
  wake();
}

void PeerWatcher::watch_process(int local, int pid) {
  UniqueFd fd = open_pidfd(pid);
  if (fd) {
    add(Kind::kProcess, group_.rank_of(local), std::move(fd));
  } else if (errno == ESRCH) {
    peer_ended(group_.rank_of(local), "its process ended");
  }  // Otherwise (an old kernel, a sandbox) the unix connections still tell.
}

void PeerWatcher::set_neighbours(const Token& token, std::vector<Neighbour> neighbours) {
  const std::lock_guard lock(mutex_);
  token_ = token;
  neighbours_ = std::move(neighbours);
}

void PeerWatcher::run() {
  std::vector<pollfd> polls;
  std::vector<Watched*> entries;
  for (;;) {
    polls.clear();
    entries.clear();
    polls.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      std::erase_if(watched_, [](const auto& entry) { return entry->done.load(); });
      for (const auto& entry : watched_) {
        entries.push_back(entry.get());
        const int fd = entry->parted ? -1 : entry->fd.get();
        polls.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      }
    }
    int timeout = -1;
    if (greeter_) {
      greeter_->append_polls(polls);
      timeout = greeter_->poll_timeout_ms();
    }
    if (::poll(polls.data(), polls.size(), timeout) < 0 && errno != EINTR) {
      log_error("host communicator: poll: ", errno_text(errno));
      return;
    }
    eventfd_t count;
    if (polls[0].revents != 0) ::eventfd_read(wake_.get(), &count);
    if (greeter_) {
      for (Arrival& arrival : greeter_->collect()) {
        if (arrival.hello.purpose == Purpose::kNews) {
          add(Kind::kNews, arrival.hello.from, std::move(arrival.fd));
        } else {
          arrivals_.add(std::move(arrival));
        }
      }
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (polls[i + 1].revents != 0) handle(*entries[i]);
    }
  }
}

void PeerWatcher::handle(Watched& watched) {
  if (watched.is_node() || watched.kind == Kind::kNews) return handle_control(watched);
  if (watched.kind == Kind::kProcess) {
    watched.done = true;
    return peer_ended(watched.rank, "its process ended");
  }
  char bytes[64];
  const SocketStep step = receive_step(watched.fd.get(), bytes, sizeof bytes);
  if (!step.ended.empty()) {
    watched.done = true;
    return peer_ended(watched.rank, "its process ended or closed its connection");
  }
  // One-byte messages of a member.
  if (std::memchr(bytes, kFailureNudge, step.num_bytes)) announce_failure();
  if (std::memchr(bytes, kRollCallNudge, step.num_bytes)) call_roll_for_members();
}

void PeerWatcher::peer_ended(int rank, std::string_view how) {
  const Topology& topology = group_.topology();
  if (topology.same_node(rank)) {
    const RankControl& control = group_.control(topology.local_index_of(rank));
    if (control.left.load(std::memory_order_acquire) != 0) return;
  }
  // A rank that posted a failure may have died before it told the node's first rank.
  if (group_.failed()) return announce_failure();
  group_.post_failure(FailureKind::kRankLost, rank, how);
}

void PeerWatcher::handle_control(Watched& watched) {
  auto* bytes = reinterpret_cast<std::byte*>(&watched.message);
  for (;;) {
    const SocketStep step = receive_step(watched.fd.get(), bytes + watched.received,
                                         sizeof(FailureRecord) - watched.received);
    if (!step.ended.empty()) {
      watched.done = true;
      if (watched.kind == Kind::kNews) return;
      return peer_ended(watched.rank, "the connection to its node ended");
    }
    if (step.num_bytes == 0) return;
    watched.received += step.num_bytes;
    if (watched.received < sizeof(FailureRecord)) continue;
    watched.received = 0;
    if (watched.message.kind == kGoodbye) {
      watched.parted = true;
      return;
    }
    FailureRecord& message = watched.message;
    if (message.kind == kRollCall) {
      handle_note(message);
      continue;
    }
    message.text[sizeof message.text - 1] = '\0';
    if (!group_.failed()) group_.post_failure(message.kind, message.rank, message.text);
  }
}

void PeerWatcher::handle_note(const FailureRecord& message) {
  RollCallNote note;
  std::memcpy(&note, message.text, sizeof note);
  if (note.origin_node == group_.topology().node_index()) return post_roll_call(group_, note);
  answer_roll_call(group_, note);
  pass_on(note);
}

void PeerWatcher::call_roll_for_members() {
  for (int local = 1; local < group_.num_local(); ++local) {
    const RollCallAnswer& answer = group_.control(local).roll_call;
    const std::uint32_t wanted = answer.wanted.load(std::memory_order_acquire);
    if (wanted == answer.sequence.load(std::memory_order_relaxed)) continue;
    pass_on(begin_roll_call(group_, local, wanted));
  }
}

void PeerWatcher::pass_on(const RollCallNote& note) {
  FailureRecord message{.kind = kRollCall, .rank = group_.topology().rank(), .text = {}};
  std::memcpy(message.text, &note, sizeof note);
  const std::lock_guard lock(mutex_);
  for (const auto& entry : watched_) {
    if (entry->kind != Kind::kNextNode || entry->done) continue;
    [[maybe_unused]] const ssize_t sent =
        ::send(entry->fd.get(), &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

std::optional<RollCallNote> PeerWatcher::call_roll(std::uint32_t sequence) {
  if (group_.local_index() == 0) {
    pass_on(begin_roll_call(group_, 0, sequence));
  } else {
    group_.own_control().roll_call.wanted.store(sequence, std::memory_order_release);
    const std::lock_guard lock(mutex_);
    nudge_first_rank(kRollCallNudge);
  }
  const Deadline deadline = Deadline::after(kRollCallTime);
  for (;;) {
    if (const auto note = read_roll_call(group_, sequence)) return note;
    if (group_.failed() || deadline.expired()) return std::nullopt;
    ::poll(nullptr, 0, 1);
  }
}

void PeerWatcher::send_to_nodes(const FailureRecord& message) {
  for (const auto& entry : watched_) {
    if (entry->is_node() && !entry->done) send_to(*entry, message);
  }
}

// 240 bytes fit an otherwise empty socket buffer, so they are always taken whole.
void PeerWatcher::send_to(const Watched& node, const FailureRecord& message) {
  [[maybe_unused]] const ssize_t sent =
      ::send(node.fd.get(), &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void PeerWatcher::announce_failure() {
  const std::lock_guard lock(mutex_);
  if (announced_ || !group_.failed()) return;
  announced_ = true;
  const FailureRecord failure = group_.failure();
  if (group_.local_index() == 0) {
    send_to_nodes(failure);
    return;
  }
  const bool nudged = nudge_first_rank(kFailureNudge);
  const bool first_is_lost =
      failure.kind == FailureKind::kRankLost && failure.rank == group_.rank_of(0);
  if (!nudged || first_is_lost) tell_neighbours(failure);
}

// mutex_ is held. Returns false if the first rank is gone.
bool PeerWatcher::nudge_first_rank(char nudge) {
  bool taken = false;
  for (const auto& entry : watched_) {
    if (entry->kind != Kind::kUnix || entry->done) continue;
    taken = ::send(entry->fd.get(), &nudge, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
  }
  return taken;
}

// mutex_ is held. Other nodes may see nothing by themselves: a child process of the first rank can
// keep its connections open. One node that hears it tells all.
void PeerWatcher::tell_neighbours(const FailureRecord& failure) {
  const Deadline deadline = Deadline::after(kNewsTime);
  for (const Neighbour& neighbour : neighbours_) {
    const Hello hello{.token = token_,
                      .from = group_.topology().rank(),
                      .to = neighbour.rank,
                      .purpose = Purpose::kNews};
    try {
      UniqueFd fd;
      connect_once(resolve(neighbour.endpoint).front(), deadline, &fd);
      if (!fd) continue;
      send_all(fd.get(), &hello, sizeof hello, deadline);
      send_all(fd.get(), &failure, sizeof failure, deadline);
    } catch (const Error& error) {
      log_debug("host communicator: could not tell rank ", neighbour.rank, ": ", error.what());
    }
  }
}

}  // namespace ddprun::host
