// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/ring.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/error.h"
#include "common/socket.h"
#include "worker_sdk/core/host/reduce_kernels.h"

namespace ddprun::host {
namespace {

constexpr std::size_t kBlock = 2048;  // elements per pass, which fit the L1 cache

}  // namespace

Ring::Ring(NodeGroup& group, Neighbour next, Neighbour previous, std::size_t chunk_bytes)
    : group_(group),
      io_(group),
      next_(std::move(next)),
      previous_(std::move(previous)),
      chunk_bytes_(chunk_bytes / 64 * 64),
      node_index_(group.topology().node_index()),
      num_nodes_(group.topology().num_nodes()),
      send_lanes_(next_.sockets.size()),
      receive_lanes_(next_.sockets.size()),
      scratch_(next_.sockets.size()),
      packed_(next_.sockets.size()) {}

void Ring::add(std::vector<Transfer>& list, std::byte* base, Range bytes,
               const Transfer& kind) const {
  for (std::size_t begin = bytes.begin; begin < bytes.end; begin += chunk_bytes_) {
    list.push_back(kind);
    list.back().data = base + begin;
    list.back().size_bytes = std::min(chunk_bytes_, bytes.end - begin);
  }
}

// In step s block (node − s − 1) is sent, and block (node − s − 2) is received, which is sent in
// the next step. The last one received is this node's own.
void Ring::add_reduce_scatter(Flow& flow, std::byte* base, const std::vector<Range>& blocks) const {
  const auto block = [&](int back) {
    return blocks[static_cast<std::size_t>((node_index_ - back + 2 * num_nodes_) % num_nodes_)];
  };
  for (int step = 0; step < num_nodes_ - 1; ++step) {
    add(flow.sends, base, block(step + 1), {.own = step == 0});
    add(flow.receives, base, block(step + 2), {.reduce = true, .whole = step == num_nodes_ - 2});
    if (step == 0) flow.num_free_sends = flow.sends.size();
  }
}

// In step s block (node − s) is sent, and block (node − s − 1) is received.
void Ring::add_all_gather(Flow& flow, std::byte* base, const std::vector<Range>& blocks) const {
  const auto block = [&](int back) {
    return blocks[static_cast<std::size_t>((node_index_ - back + num_nodes_) % num_nodes_)];
  };
  const bool first = flow.sends.empty() && flow.receives.empty();
  for (int step = 0; step < num_nodes_ - 1; ++step) {
    add(flow.sends, base, block(step), {});
    add(flow.receives, base, block(step + 1), {});
    if (first && step == 0) flow.num_free_sends = flow.sends.size();
  }
}

void Ring::all_reduce(const Call& call, std::byte* base, const std::vector<Range>& blocks,
                      DType dtype, ReduceOp op, DType wire, int divisor) {
  Flow flow;
  flow.divisor = divisor;
  flow.dtype = dtype;
  flow.wire = wire;
  flow.op = op;
  add_reduce_scatter(flow, base, blocks);
  add_all_gather(flow, base, blocks);
  run(call, flow);
}

void Ring::reduce_scatter(const Call& call, std::byte* base, const std::vector<Range>& blocks,
                          DType dtype, ReduceOp op) {
  Flow flow;
  flow.dtype = flow.wire = dtype;
  flow.op = op;
  add_reduce_scatter(flow, base, blocks);
  run(call, flow);
}

void Ring::all_gather(const Call& call, std::byte* base, const std::vector<Range>& blocks) {
  Flow flow;
  add_all_gather(flow, base, blocks);
  run(call, flow);
}

void Ring::broadcast(const Call& call, std::byte* data, std::size_t size_bytes, int root_node) {
  Flow flow;
  const bool is_root = node_index_ == root_node;
  const bool is_last = (node_index_ + 1) % num_nodes_ == root_node;
  if (!is_root) add(flow.receives, data, {0, size_bytes}, {});
  if (!is_last) add(flow.sends, data, {0, size_bytes}, {});
  if (is_root) flow.num_free_sends = flow.sends.size();
  run(call, flow);
}

// Returns the bytes for the socket, narrowed to the wire's dtype.
const std::byte* Ring::packed(const Flow& flow, const Transfer& transfer, std::size_t socket) {
  if (flow.wire == flow.dtype) return transfer.data;
  std::vector<std::byte>& chunk = packed_[socket];
  if (!send_lanes_[socket].packed) {
    chunk.resize(std::max(chunk.size(), wire_bytes(flow, transfer)));
    pack(flow, transfer, chunk.data());
    send_lanes_[socket].packed = true;
  }
  return chunk.data();
}

void Ring::pack(const Flow& flow, const Transfer& transfer, std::byte* to) {
  const ReduceKernels& kernels = reduce_kernels();
  const auto* const values = reinterpret_cast<const float*>(transfer.data);
  const std::size_t count = transfer.size_bytes / sizeof(float);
  if (!transfer.own || flow.divisor == 1) return kernels.narrow(to, values, count, flow.wire);
  float share[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    std::memcpy(share, values + begin, length * sizeof(float));
    kernels.divide(share, length, flow.dtype, flow.divisor);
    kernels.narrow(to + begin * size_of(flow.wire), share, length, flow.wire);
  }
}

// Takes in bytes from the socket. It may change `received`, which is `transfer.data` if nothing is
// to be done.
void Ring::take_in(const Flow& flow, const Transfer& transfer, std::byte* received) {
  if (flow.wire != flow.dtype) return take_in_narrow(flow, transfer, received);
  if (!transfer.reduce) return;
  const ReduceKernels& kernels = reduce_kernels();
  const std::size_t element = size_of(flow.dtype);
  for (std::size_t begin = 0; begin < transfer.size_bytes; begin += kBlock * element) {
    const std::size_t length = std::min(kBlock, (transfer.size_bytes - begin) / element);
    std::byte* const part = transfer.data + begin;
    kernels.combine(part, received + begin, part, length, flow.dtype, flow.op);
    if (transfer.whole && flow.divisor > 1) kernels.divide(part, length, flow.dtype, flow.divisor);
  }
}

void Ring::take_in_narrow(const Flow& flow, const Transfer& transfer, std::byte* received) {
  const ReduceKernels& kernels = reduce_kernels();
  auto* const values = reinterpret_cast<float*>(transfer.data);
  const std::size_t count = transfer.size_bytes / sizeof(float);
  if (!transfer.reduce) return kernels.widen(values, received, count, flow.wire);
  float widened[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    std::byte* const part = received + begin * size_of(flow.wire);
    kernels.widen(widened, part, length, flow.wire);
    if (flow.divisor > 1) kernels.divide(values + begin, length, flow.dtype, flow.divisor);
    kernels.combine(values + begin, widened, values + begin, length, flow.dtype, flow.op);
    if (!transfer.whole) continue;
    // The others get it rounded, so it must be rounded here, too.
    kernels.narrow(part, values + begin, length, flow.wire);
    kernels.widen(values + begin, part, length, flow.wire);
  }
}

void Ring::run(const Call& call, Flow& flow) {
  received_.assign(flow.receives.size(), false);
  for (std::size_t socket = 0; socket < num_sockets(); ++socket) {
    send_lanes_[socket] = {.transfer = socket, .header = call.header};
    receive_lanes_[socket] = {.transfer = socket};
  }
  std::vector<pollfd> polls;
  for (;;) {
    bool moved = false;
    polls.clear();
    int waits_for = next_.rank;
    for (std::size_t socket = 0; socket < num_sockets(); ++socket) {
      while (advance_receive(call, flow, socket)) moved = true;
      if (receive_lanes_[socket].transfer < flow.receives.size()) {
        polls.push_back({.fd = previous_.sockets[socket].get(), .events = POLLIN, .revents = 0});
        waits_for = previous_.rank;
      }
    }
    for (std::size_t socket = 0; socket < num_sockets(); ++socket) {
      while (advance_send(call, flow, socket)) moved = true;
      const std::size_t transfer = send_lanes_[socket].transfer;
      if (transfer < flow.sends.size() && may_send(flow, transfer)) {
        polls.push_back({.fd = next_.sockets[socket].get(), .events = POLLOUT, .revents = 0});
      }
    }
    if (moved) continue;
    if (polls.empty()) return;
    io_.wait(polls, waits_for, call);
  }
}

// Returns true if something was sent and more may be possible.
bool Ring::advance_send(const Call& call, const Flow& flow, std::size_t socket) {
  Lane& lane = send_lanes_[socket];
  if (lane.transfer >= flow.sends.size() || !may_send(flow, lane.transfer)) return false;
  const Transfer& transfer = flow.sends[lane.transfer];
  const std::size_t size_bytes = wire_bytes(flow, transfer);
  iovec parts[2] = {
      {.iov_base = reinterpret_cast<std::byte*>(&lane.header) + lane.header_bytes,
       .iov_len = sizeof lane.header - lane.header_bytes},
      {.iov_base = const_cast<std::byte*>(packed(flow, transfer, socket)) + lane.offset,
       .iov_len = size_bytes - lane.offset}};
  const bool header_done = lane.header_bytes == sizeof lane.header;
  msghdr message{};
  message.msg_iov = parts + (header_done ? 1 : 0);
  message.msg_iovlen = header_done ? 1 : 2;
  const ssize_t sent =
      ::sendmsg(next_.sockets[socket].get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == EINTR) return true;
    io_.connection_ended(next_.rank, errno_text(errno), call);
  }
  const auto size = static_cast<std::size_t>(sent);
  const std::size_t of_header = std::min(size, sizeof lane.header - lane.header_bytes);
  lane.header_bytes += of_header;
  lane.offset += size - of_header;
  if (lane.header_bytes == sizeof lane.header && lane.offset == size_bytes) {
    lane.transfer += num_sockets();
    lane.offset = 0;
    lane.packed = false;
  }
  return true;
}

// Sends the header alone: the next rank must also see that calls differ, though no data follows.
void Ring::show_header() {
  for (std::size_t socket = 0; socket < num_sockets(); ++socket) {
    Lane& lane = send_lanes_[socket];
    if (lane.header_bytes != 0) continue;
    [[maybe_unused]] const ssize_t sent = ::send(next_.sockets[socket].get(), &lane.header,
                                                 sizeof lane.header, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

// Returns true if something was received.
bool Ring::advance_receive(const Call& call, const Flow& flow, std::size_t socket) {
  Lane& lane = receive_lanes_[socket];
  if (lane.transfer >= flow.receives.size()) return false;
  const Transfer& transfer = flow.receives[lane.transfer];
  std::vector<std::byte>& scratch = scratch_[socket];
  const bool in_place = !transfer.reduce && flow.wire == flow.dtype;
  if (!in_place && scratch.size() < chunk_bytes_) scratch.resize(chunk_bytes_);
  const bool in_header = lane.header_bytes < sizeof lane.header;
  std::byte* const target = in_place ? transfer.data : scratch.data();
  const std::size_t size_bytes = wire_bytes(flow, transfer);
  std::byte* const to = in_header ? reinterpret_cast<std::byte*>(&lane.header) + lane.header_bytes
                                  : target + lane.offset;
  const std::size_t size =
      in_header ? sizeof lane.header - lane.header_bytes : size_bytes - lane.offset;
  const SocketStep step = receive_step(previous_.sockets[socket].get(), to, size);
  if (!step.ended.empty()) io_.connection_ended(previous_.rank, step.ended, call);
  if (step.num_bytes == 0) return false;
  if (in_header) {
    lane.header_bytes += step.num_bytes;
    if (lane.header_bytes == sizeof lane.header && !(lane.header == call.header)) {
      show_header();
      throw Error(ErrorCode::kProtocol, different_calls(group_.topology().rank(), call.header,
                                                        previous_.rank, lane.header));
    }
    return true;
  }
  lane.offset += step.num_bytes;
  if (lane.offset < size_bytes) return true;
  take_in(flow, transfer, target);
  received_[lane.transfer] = true;
  lane.transfer += num_sockets();
  lane.offset = 0;
  return true;
}

}  // namespace ddprun::host
