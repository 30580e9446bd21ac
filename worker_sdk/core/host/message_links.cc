// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/message_links.h"

#include <exception>

#include "common/error.h"
#include "worker_sdk/core/host/mailboxes.h"

namespace ddprun::host {
namespace {

struct MessageHeader {
  std::uint64_t size_bytes = 0;
  std::uint32_t sequence = 0;
  DType dtype = DType::kUInt8;
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(MessageHeader) == 16);

}  // namespace

MessageLinks::MessageLinks(NodeGroup& group, ArrivalBook& arrivals, const Token& token,
                           std::vector<Endpoint> endpoint_of)
    : group_(group), arrivals_(arrivals), token_(token), endpoint_of_(std::move(endpoint_of)) {}

int MessageLinks::socket_of(int peer, const Call& call) {
  std::unique_lock lock(mutex_);
  Link& link = links_[peer];
  while (link.being_made) {
    if (made_.wait_until(lock, Clock::now() + kLook, [&] { return !link.being_made; })) break;
    lock.unlock();
    OperationIo(group_).check(peer, call);
    lock.lock();
  }
  if (link.fd) return link.fd.get();
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
  return link.fd.get();
}

UniqueFd MessageLinks::connect(int peer, const Call& call) {
  OperationIo io(group_);
  const int self = group_.topology().rank();
  if (self > peer) return io.take(arrivals_, peer, Purpose::kMessage, 0, call);
  Hello hello;
  hello.token = token_;
  hello.from = self;
  hello.to = peer;
  hello.purpose = Purpose::kMessage;
  return io.open(endpoint_of_[static_cast<std::size_t>(peer)], hello, call);
}

void MessageLinks::send(const Call& call, const TensorView& buffer, int peer) {
  OperationIo io(group_);
  const int fd = socket_of(peer, call);
  const MessageHeader header{
      .size_bytes = buffer.size_bytes(), .sequence = call.header.sequence, .dtype = buffer.dtype};
  io.send_all(fd, &header, sizeof header, peer, call);
  io.send_all(fd, buffer.data, buffer.size_bytes(), peer, call);
}

void MessageLinks::recv(const Call& call, const TensorView& buffer, int peer) {
  OperationIo io(group_);
  const int fd = socket_of(peer, call);
  MessageHeader header;
  io.receive_all(fd, &header, sizeof header, peer, call);
  if (header.size_bytes != buffer.size_bytes() || header.dtype != buffer.dtype) {
    throw Error(ErrorCode::kProtocol, mismatch_text(call, header.size_bytes, header.dtype, peer));
  }
  io.receive_all(fd, buffer.data, buffer.size_bytes(), peer, call);
}

}  // namespace ddprun::host
