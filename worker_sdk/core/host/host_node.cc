// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/host_node.h"

#include <poll.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>

#include "common/env_names.h"
#include "common/socket.h"
#include "common/throw_error.h"
#include "worker_sdk/core/host/operation_io.h"
#include "worker_sdk/core/host/reduce_kernels.h"

namespace ddprun::host {
namespace {

void check_endpoints(const std::vector<PeerRecord>& records, const Topology& topology) {
  for (int rank = 0; rank < topology.size(); ++rank) {
    if (records[static_cast<std::size_t>(rank)].endpoint.port != 0) continue;
    throw_invalid("rank ", rank, " has no address for other nodes: set ", env::kNodeAddr,
                  " there (ddprun does it)");
  }
}

// Returns the first ranks of the next and the previous node, which may be the same node.
std::vector<PeerWatcher::Neighbour> first_ranks_beside(const Topology& topology,
                                                       const std::vector<PeerRecord>& records) {
  std::vector<PeerWatcher::Neighbour> neighbours;
  const int num_nodes = topology.num_nodes();
  for (const int step : {1, num_nodes - 1}) {
    const int rank = topology.ranks_of((topology.node_index() + step) % num_nodes).front();
    if (!neighbours.empty() && neighbours.front().rank == rank) continue;
    neighbours.push_back(
        {.rank = rank, .endpoint = records[static_cast<std::size_t>(rank)].endpoint});
  }
  return neighbours;
}

// A MessageFront is sent over TCP before each message.
static_assert(sizeof(MessageFront) == 16 && std::is_trivially_copyable_v<MessageFront>);

}  // namespace

// send and recv between two ranks of one node: a double-buffered mailbox in shared memory for each
// direction of each pair.
class Mailboxes {
 public:
  explicit Mailboxes(NodeGroup& group)
      : group_(group),
        sent_(static_cast<std::size_t>(group.num_local())),
        received_(static_cast<std::size_t>(group.num_local())) {}

  // Returns when the receiver has taken all but the last kMailboxSlots pieces; `buffer` is then
  // free.
  void send(const Call& call, const TensorView& buffer, int local_peer, int tag) {
    Mailbox& box = group_.mailbox(group_.local_index(), local_peer);
    std::uint32_t& sent = sent_[static_cast<std::size_t>(local_peer)];
    const auto* from = static_cast<const std::byte*>(buffer.data);
    const std::size_t total = buffer.size_bytes();
    std::size_t offset = 0;
    do {  // an empty message is one empty piece
      group_.wait_for(box.emptied, sent + 1 - kMailboxSlots, local_peer, call);
      MailboxSlot& slot = box.slots[sent % kMailboxSlots];
      const std::size_t piece = std::min(kMailboxSlotBytes, total - offset);
      slot.message_bytes = total;
      slot.piece_bytes = piece;
      slot.tag = tag;
      slot.dtype = buffer.dtype;
      copy_bytes(slot.data, from + offset, piece);
      offset += piece;
      group_.publish(box.filled, ++sent);
    } while (offset < total);
  }

  // These two are as HostNode's await_message() and take_message().
  std::optional<MessageFront> await(const Call& call, int local_peer) {
    Mailbox& box = group_.mailbox(local_peer, group_.local_index());
    const std::uint32_t received = received_[static_cast<std::size_t>(local_peer)];
    if (!group_.wait_briefly(box.filled, received + 1, local_peer, call)) return std::nullopt;
    const MailboxSlot& slot = box.slots[received % kMailboxSlots];
    return MessageFront{.size_bytes = slot.message_bytes, .tag = slot.tag, .dtype = slot.dtype};
  }

  void take(const Call& call, void* to, int local_peer) {
    Mailbox& box = group_.mailbox(local_peer, group_.local_index());
    std::uint32_t& received = received_[static_cast<std::size_t>(local_peer)];
    std::size_t offset = 0, total = 0;
    do {
      group_.wait_for(box.filled, received + 1, local_peer, call);
      const MailboxSlot& slot = box.slots[received % kMailboxSlots];
      if (offset == 0) total = slot.message_bytes;
      const std::size_t piece = std::min<std::size_t>(slot.piece_bytes, total - offset);
      copy_bytes(static_cast<std::byte*>(to) + offset, slot.data, piece);
      offset += piece;
      group_.publish(box.emptied, ++received);
    } while (offset < total);
  }

 private:
  NodeGroup& group_;
  // For each peer: pieces so far, modulo 2^32 like the flags.
  std::vector<std::uint32_t> sent_;
  std::vector<std::uint32_t> received_;
};

// The same between ranks on different nodes: one TCP connection per pair, made when first needed
// (the lower rank connects).
class MessageLinks {
 public:
  // `look` is called in each wait, and throws anything else that ends it.
  MessageLinks(NodeGroup& group, ArrivalBook& arrivals, const Token& token,
               std::vector<Endpoint> endpoint_of, std::function<void()> look)
      : group_(group),
        arrivals_(arrivals),
        token_(token),
        endpoint_of_(std::move(endpoint_of)),
        look_(std::move(look)) {}

  // Returns when the kernel has taken the data; `buffer` is then free.
  void send(const Call& call, const TensorView& buffer, int peer, int tag) {
    OperationIo io(group_, look_);
    const int fd = link_to(peer, call).fd.get();
    const MessageFront front{.size_bytes = buffer.size_bytes(), .tag = tag, .dtype = buffer.dtype};
    io.send_all(fd, &front, sizeof front, peer, call);
    io.send_all(fd, buffer.data, buffer.size_bytes(), peer, call);
  }

  // These two are as HostNode's await_message() and take_message().
  std::optional<MessageFront> await(const Call& call, int peer) {
    OperationIo io(group_, look_);
    Link& link = link_to(peer, call);
    if (link.front) return link.front;
    std::vector<pollfd> polls{{.fd = link.fd.get(), .events = POLLIN, .revents = 0}};
    io.wait(polls, peer, call);
    if (polls.front().revents == 0) return std::nullopt;
    MessageFront front;
    io.receive_all(link.fd.get(), &front, sizeof front, peer, call);
    return link.front = front;
  }

  void take(const Call& call, void* to, int peer) {
    OperationIo io(group_, look_);
    Link& link = link_to(peer, call);
    io.receive_all(link.fd.get(), to, link.front->size_bytes, peer, call);
    link.front.reset();
  }

 private:
  struct Link {
    UniqueFd fd;
    bool being_made = false;
    std::optional<MessageFront> front;  // of a message received but not taken yet
  };

  // A send and a recv may need the connection at once. One makes it, the other waits for it; each
  // has its own deadline.
  Link& link_to(int peer, const Call& call) {
    std::unique_lock lock(mutex_);
    Link& link = links_[peer];
    while (link.being_made) {
      if (made_.wait_until(lock, Clock::now() + kLook, [&] { return !link.being_made; })) break;
      lock.unlock();
      OperationIo(group_, look_).check(peer, call);
      lock.lock();
    }
    if (link.fd) return link;
    link.being_made = true;
    lock.unlock();
    UniqueFd fd;
    std::exception_ptr error;
    try {
      fd = connect(peer, call);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    link.being_made = false;
    made_.notify_all();
    if (error) std::rethrow_exception(error);
    link.fd = std::move(fd);
    return link;
  }

  UniqueFd connect(int peer, const Call& call) {
    OperationIo io(group_, look_);
    const int self = group_.topology().rank();
    if (self > peer) return io.take(arrivals_, peer, Purpose::kMessage, 0, call);
    const Hello hello{.token = token_, .from = self, .to = peer, .purpose = Purpose::kMessage};
    return io.open(endpoint_of_[static_cast<std::size_t>(peer)], hello, call);
  }

  // Constant after construction.
  NodeGroup& group_;
  ArrivalBook& arrivals_;
  const Token token_;
  const std::vector<Endpoint> endpoint_of_;
  const std::function<void()> look_;

  std::mutex mutex_;
  std::condition_variable made_;
  std::map<int, Link> links_;  // guarded by mutex_, except `front`; entries stay where they are
};

HostNode::HostNode(store::Store& store, const HostCommunicatorOptions& options) {
  const Call start{.header = {.kind = kStartCall},
                   .deadline = Deadline::after(options.init_timeout),
                   .timeout = options.init_timeout};
  StartWatch watch(store, options);
  try {
    begin(store, options, watch, start);
  } catch (const Error& error) {
    // Called while this rank's sockets are still open: the others look for the cause when they end.
    watch.end_with(error);
  } catch (const std::exception& error) {
    watch.end_with(Error(ErrorCode::kResourceExhausted, error.what()));
  }
}

void HostNode::begin(store::Store& store, const HostCommunicatorOptions& options, StartWatch& watch,
                     const Call& start) {
  PeerRecord own;
  own.node_rank = options.node_rank;
  own.token = random_bytes();
  own.pid = ::getpid();
  own.pid_namespace = pid_namespace();
  UniqueFd unix_listener = listen_on_unix(&own.unix_name);
  if (!options.node_addr.empty()) {
    tcp_listener_ = listen_on(resolve({.host = options.node_addr, .port = 0}).front());
    own.endpoint = {.host = options.node_addr, .port = local_address(tcp_listener_.get()).port()};
  }
  const std::vector<PeerRecord> records = exchange_records(store, options, own, start.deadline);

  join_node(records, options.rank, std::move(unix_listener), watch, start);
  const Topology& topology = group_->topology();
  const Token& token = records.front().token;
  std::unique_ptr<Greeter> greeter;
  if (topology.num_nodes() > 1) {
    check_endpoints(records, topology);
    // The call uses watcher_, which is there before the first wait.
    group_->set_roll_call([this](std::uint32_t sequence) { return watcher_->call_roll(sequence); });
    greeter = std::make_unique<Greeter>(std::move(tcp_listener_), token, options.rank);
  } else {
    tcp_listener_.reset();
  }
  start_watching(records, std::move(greeter), start);
  arena_ = std::make_unique<Arena>(group_->local_index(), group_->num_local());
  mailboxes_ = std::make_unique<Mailboxes>(*group_);
  if (topology.num_nodes() == 1) {
    collectives_ = make_node_collectives(*group_, *steps_, *arena_);
    return;
  }
  std::vector<Endpoint> endpoint_of;
  for (const PeerRecord& record : records) endpoint_of.push_back(record.endpoint);
  watcher_->set_neighbours(token, first_ranks_beside(topology, records));
  links_ = std::make_unique<MessageLinks>(*group_, arrivals_, token, std::move(endpoint_of),
                                          [this] { throw_if_receiving_stops(); });
  collectives_ =
      make_cluster_collectives(*group_, *steps_, join_rings(records, options, watch, start));
  // A neighbouring node may fail before this point without telling this one why. A node that is
  // still in its start asks the store.
  steps_->sync(start);
}

HostNode::~HostNode() {
  if (group_) group_->leave();
  watcher_.reset();
}

void HostNode::join_node(const std::vector<PeerRecord>& records, int rank, UniqueFd unix_listener,
                         StartWatch& watch, const Call& start) {
  std::vector<int> node_rank_of;
  for (const PeerRecord& record : records) node_rank_of.push_back(record.node_rank);
  Topology topology(node_rank_of, rank);
  const Token& token = records.front().token;
  const std::size_t size_bytes = NodeMemoryLayout(topology.num_local()).total_bytes();
  const int first = topology.local_ranks().front();
  watch.watch_node(records, topology);
  if (rank != first) {
    unix_listener.reset();
    const std::string& name = records[static_cast<std::size_t>(first)].unix_name;
    connections_ = connect_to_first(name, token, topology, watch, start.deadline);
    watch.wait_ready(connections_.memory.front().get(), POLLIN, start.deadline);
    UniqueFd memory;
    try {
      memory = receive_memory(connections_, topology, start.deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerLost) throw;
      watch.connection_ended(first, "it closed its connection");
    }
    group_ =
        std::make_unique<NodeGroup>(std::move(topology), SharedMapping(memory.get(), size_bytes));
    if (group_->node_control().magic != kNodeMemoryMagic) {
      throw_error(ErrorCode::kProtocol, "rank ", first, " shares memory of another version");
    }
  } else {
    connections_ = accept_members(std::move(unix_listener), token, topology, watch, start.deadline);
    const UniqueFd memory = create_shared_memory("ddprun-node", size_bytes);
    group_ = std::make_unique<NodeGroup>(topology, SharedMapping(memory.get(), size_bytes));
    NodeControl& control = group_->node_control();
    control.magic = kNodeMemoryMagic;
    control.num_local = static_cast<std::uint32_t>(topology.num_local());
    for (std::size_t local = 1; local < connections_.memory.size(); ++local) {
      const int member = topology.local_ranks()[local];
      try {
        hand_memory(connections_.memory[local].get(), memory.get(), member, start.deadline);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kPeerLost) throw;
        watch.connection_ended(member, "it closed its connection");
      }
    }
  }
  watch.set_group(*group_);
  steps_ = std::make_unique<NodeSteps>(*group_);
}

void HostNode::start_watching(const std::vector<PeerRecord>& records,
                              std::unique_ptr<Greeter> greeter, const Call& start) {
  watcher_ = std::make_unique<PeerWatcher>(*group_, std::move(greeter), arrivals_);
  const bool is_first = group_->local_index() == 0;
  for (std::size_t i = is_first ? 1 : 0; i < connections_.watch.size(); ++i) {
    watcher_->watch_connection(static_cast<int>(i), std::move(connections_.watch[i]));
  }
  const PeerRecord& own = records[static_cast<std::size_t>(group_->topology().rank())];
  for (int local = 0; local < group_->num_local(); ++local) {
    const PeerRecord& peer = records[static_cast<std::size_t>(group_->rank_of(local))];
    const bool same_namespace = peer.pid_namespace == own.pid_namespace;
    if (same_namespace && peer.pid != own.pid) watcher_->watch_process(local, peer.pid);
  }
  // All ranks still live when all have opened their pidfds, so no pidfd is of a reused pid.
  steps_->sync(start);
}

std::unique_ptr<Ring> HostNode::join_rings(const std::vector<PeerRecord>& records,
                                           const HostCommunicatorOptions& options,
                                           StartWatch& watch, const Call& start) {
  const Topology& topology = group_->topology();
  OperationIo io(*group_, [&watch] { watch.look(); });
  const int num_nodes = topology.num_nodes();
  const auto peer_on = [&](int node_index) {
    const int node = (node_index + num_nodes) % num_nodes;
    return topology.ranks_of(node)[static_cast<std::size_t>(topology.local_index())];
  };
  const auto open = [&](int rank, Purpose purpose, int index) {
    const Hello hello{.token = records.front().token,
                      .from = topology.rank(),
                      .to = rank,
                      .purpose = purpose,
                      .index = static_cast<std::uint16_t>(index)};
    return io.open(records[static_cast<std::size_t>(rank)].endpoint, hello, start);
  };
  if (!topology.is_carrier()) return nullptr;
  Ring::Neighbour next{.rank = peer_on(topology.node_index() + 1), .sockets = {}};
  Ring::Neighbour previous{.rank = peer_on(topology.node_index() - 1), .sockets = {}};
  if (topology.local_index() == 0) {
    UniqueFd control = open(next.rank, Purpose::kControl, 0);
    watcher_->watch_next_node(next.rank, std::move(control));
    control = io.take(arrivals_, previous.rank, Purpose::kControl, 0, start);
    watcher_->watch_previous_node(previous.rank, std::move(control));
  }
  for (int index = 0; index < options.sockets_per_neighbour; ++index) {
    next.sockets.push_back(open(next.rank, Purpose::kRing, index));
  }
  for (int index = 0; index < options.sockets_per_neighbour; ++index) {
    previous.sockets.push_back(io.take(arrivals_, previous.rank, Purpose::kRing, index, start));
  }
  return std::make_unique<Ring>(*group_, std::move(next), std::move(previous), options.chunk_bytes);
}

std::unique_ptr<CommBuffer> HostNode::allocate(const Call& call, std::size_t size_bytes) {
  collectives_->barrier(call);  // this compares the calls, on all nodes
  const std::size_t mapping_bytes = arena_->mapping_bytes(size_bytes);
  SharedMapping mapping =
      group_->num_local() == 1
          ? SharedMapping::of_one_rank(mapping_bytes)
          : SharedMapping(share_memory(call, mapping_bytes).get(), mapping_bytes);
  auto buffer = arena_->adopt(std::move(mapping), size_bytes);
  steps_->sync(call);
  return buffer;
}

UniqueFd HostNode::share_memory(const Call& call, std::size_t size_bytes) {
  const Topology& topology = group_->topology();
  try {
    if (group_->local_index() == 0) {
      UniqueFd memory = create_shared_memory("ddprun-buffer", size_bytes);
      for (std::size_t local = 1; local < connections_.memory.size(); ++local) {
        hand_memory(connections_.memory[local].get(), memory.get(), topology.local_ranks()[local],
                    call.deadline);
      }
      return memory;
    }
    const int fd = connections_.memory.front().get();
    while (!wait_ready(fd, POLLIN, Deadline::after(kLook)) && !call.deadline.expired()) {
      group_->throw_if_failed(call.text());
    }
    return receive_memory(connections_, topology, call.deadline);
  } catch (const Error& error) {
    // The rank at the other end may have ended because it saw a third one end.
    if (error.code() == ErrorCode::kPeerLost) OperationIo(*group_).await_failure(call);
    throw;
  }
}

void HostNode::send(const Call& call, const TensorView& buffer, int peer, int tag) {
  const Topology& topology = group_->topology();
  if (!topology.same_node(peer)) return links_->send(call, buffer, peer, tag);
  mailboxes_->send(call, buffer, topology.local_index_of(peer), tag);
}

std::optional<MessageFront> HostNode::await_message(const Call& call, int peer) {
  const Topology& topology = group_->topology();
  throw_if_receiving_stops();
  if (!topology.same_node(peer)) return links_->await(call, peer);
  return mailboxes_->await(call, topology.local_index_of(peer));
}

void HostNode::take_message(const Call& call, void* to, int peer) {
  const Topology& topology = group_->topology();
  if (!topology.same_node(peer)) return links_->take(call, to, peer);
  mailboxes_->take(call, to, topology.local_index_of(peer));
}

void HostNode::throw_if_receiving_stops() const {
  if (stops_receiving_.load()) throw Error(ErrorCode::kAborted, "the communicator was destroyed");
}

}  // namespace ddprun::host
