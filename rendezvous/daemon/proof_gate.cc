// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/daemon/proof_gate.h"

#include <boost/asio/ip/tcp.hpp>
#include <utility>

#include "common/log.h"

namespace ddprun::rendezvous {

namespace asio = boost::asio;
using membership::FrameStream;

namespace {
constexpr std::chrono::milliseconds kFlushLimit{1'000};  // for a refusal
}  // namespace

ProofGate::ProofGate(asio::io_context& io, Options options)
    : options_(std::move(options)), io_(io) {}

void ProofGate::take(const Frames& frames, std::unique_ptr<security::RendezvousProof> proof,
                     Newcomer newcomer, Admitted admitted) {
  boost::system::error_code gone;
  const auto peer = frames->wire().socket().remote_endpoint(gone);
  if (gone || is_stopped_) return;
  const std::uint64_t number = next_number_++;
  Waiting& waiting = waiting_[number];
  waiting.frames = frames;
  waiting.proof = std::move(proof);
  waiting.admitted = std::move(admitted);
  waiting.peer = concat(peer.address().to_string(), ":", peer.port());
  waiting.timer = std::make_unique<asio::steady_timer>(io_, options_.timeout);
  const auto self = shared_from_this();
  newcomer.ended_by([self, number](const std::string& reason) {
    self->drop(number, concat("no proof of the token yet, and ", reason));
  });
  waiting.newcomer = std::move(newcomer);
  waiting.timer->async_wait([self, number](boost::system::error_code error) {
    if (error || !self->waiting_.contains(number)) return;
    self->drop(number, concat("no proof of the token in ", self->options_.timeout.count(), " ms"));
  });
  frames->limit_messages(security::kMaxProofBytes);
  FrameStream::Handlers handlers;
  handlers.frame = [self, number](std::string_view frame) { self->received(number, frame); };
  handlers.ended = [self, number](const std::string& reason) {
    self->drop(number, concat("it gave no proof of the token (", reason, ")"));
  };
  frames->start(std::move(handlers));
}

void ProofGate::received(std::uint64_t number, std::string_view frame) {
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return;
  const auto verdict = found->second.proof->check(frame);
  if (!verdict.admitted) {
    drop(number, verdict.reason, verdict.reply);
    return;
  }
  const Waiting admitted = std::move(waiting_.extract(found).mapped());
  admitted.frames->send(verdict.reply);
  admitted.frames->lift_limit();
  admitted.admitted(admitted.frames);
}

void ProofGate::drop(std::uint64_t number, const std::string& reason, const std::string& reply) {
  const auto dropped = waiting_.extract(number);
  if (dropped.empty()) return;
  const Waiting& waiting = dropped.mapped();
  log_warning("closed the connection of agent ", waiting.peer, ": ", reason);
  if (!reply.empty()) waiting.frames->send(reply);
  waiting.frames->close_when_sent(kFlushLimit);
}

void ProofGate::stop() {
  is_stopped_ = true;
  for (const auto& [number, waiting] : std::exchange(waiting_, {})) waiting.frames->close();
}

}  // namespace ddprun::rendezvous
