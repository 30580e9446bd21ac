// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/host/mailboxes.h"

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/core/host/reduce_kernels.h"

namespace ddprun::host {

Mailboxes::Mailboxes(NodeGroup& group)
    : group_(group),
      sent_(static_cast<std::size_t>(group.num_local())),
      received_(static_cast<std::size_t>(group.num_local())) {}

void Mailboxes::send(const Call& call, const TensorView& buffer, int local_peer) {
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
    slot.dtype = buffer.dtype;
    copy_bytes(slot.data, from + offset, piece);
    offset += piece;
    group_.publish(box.filled, ++sent);
  } while (offset < total);
}

void Mailboxes::recv(const Call& call, const TensorView& buffer, int local_peer) {
  Mailbox& box = group_.mailbox(local_peer, group_.local_index());
  std::uint32_t& received = received_[static_cast<std::size_t>(local_peer)];
  auto* to = static_cast<std::byte*>(buffer.data);
  const std::size_t total = buffer.size_bytes();
  std::size_t offset = 0;
  do {
    group_.wait_for(box.filled, received + 1, local_peer, call);
    const MailboxSlot& slot = box.slots[received % kMailboxSlots];
    if (slot.message_bytes != total || slot.dtype != buffer.dtype ||
        slot.piece_bytes > total - offset) {
      throw Error(ErrorCode::kProtocol,
                  mismatch_text(call, slot.message_bytes, slot.dtype, group_.rank_of(local_peer)));
    }
    copy_bytes(to + offset, slot.data, slot.piece_bytes);
    offset += slot.piece_bytes;
    group_.publish(box.emptied, ++received);
  } while (offset < total);
}

std::string mismatch_text(const Call& call, std::uint64_t message_bytes, DType message_dtype,
                          int sender) {
  return concat(call.text(), ": rank ", sender, " sent ", message_bytes, " bytes of ",
                ddprun::to_string(message_dtype), "; sends and receives must match in order");
}

}  // namespace ddprun::host
