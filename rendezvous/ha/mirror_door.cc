// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/ha/mirror_door.h"

#include <utility>
#include <variant>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/ha/mirror_codec.h"

namespace ddprun::ha {

using membership::FrameStream;

namespace {
constexpr std::chrono::milliseconds kRefusalLimit{1'000};
}  // namespace

MirrorDoor::MirrorDoor(boost::asio::io_context& io, MirrorDoorOptions options)
    : io_(io), options_(std::move(options)) {}

MirrorDoor::~MirrorDoor() {
  for (const auto& [number, caller] : callers_) caller.frames->close();
}

void MirrorDoor::set_server(const std::shared_ptr<MirrorServer>& server) {
  server_ = server;
  if (server) server->set_patience(patience_);
}

void MirrorDoor::take(const Frames& frames, std::shared_ptr<void> place) {
  if (callers_.size() >= options_.max_callers) {
    drop(callers_.begin()->first, "too many others came after it");
  }
  const std::uint64_t number = next_caller_++;
  Caller& caller = callers_[number];
  caller.frames = frames;
  caller.place = std::move(place);
  caller.timer = std::make_unique<boost::asio::steady_timer>(io_, options_.hello_limit);
  const auto weak = weak_from_this();
  caller.timer->async_wait([weak, number](boost::system::error_code error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->drop(number, concat("nothing in ", self->options_.hello_limit.count(), " ms"));
  });
  frames->limit_messages(kMaxMirrorTextBytes);
  FrameStream::Handlers handlers;
  handlers.frame = [weak, number](std::string_view text) {
    if (const auto self = weak.lock()) self->received(number, text);
  };
  handlers.ended = [weak, number](const std::string& why) {
    if (const auto self = weak.lock()) self->drop(number, why);
  };
  frames->start(std::move(handlers));
}

// One that has said hello, and goes, is what a pair does all day.
void MirrorDoor::drop(std::uint64_t number, const std::string& why) {
  const auto dropped = callers_.extract(number);
  if (dropped.empty()) return;
  if (dropped.mapped().name.empty() && std::exchange(last_drop_, why) != why) {
    log_warning("closed the connection of a ddprund that has not said who it is: ", why);
  }
  dropped.mapped().frames->close();
}

void MirrorDoor::received(std::uint64_t number, std::string_view text) {
  const auto caller = callers_.find(number);
  if (caller == callers_.end()) return;
  const std::string name = caller->second.name;
  const bool is_first = name.empty();
  try {
    const auto message = mirror::decode_caller_message(text);
    const auto* hello = std::get_if<mirror::Hello>(&message);
    if (is_first && hello != nullptr) return greet(number, hello->version, hello->state);
    if (is_first) throw Error(ErrorCode::kProtocol, "its first message is no hello");
    if (std::holds_alternative<mirror::Mirror>(message)) return let_mirror(number);
    throw Error(ErrorCode::kProtocol, "it says something else in place of mirror");
  } catch (const Error& error) {
    if (!is_first) log_warning(name, " makes no sense: ", error.what());
    drop(number, error.what());
  }
}

void MirrorDoor::greet(std::uint64_t number, int version, const PairState& theirs) {
  last_drop_.clear();
  Caller& caller = callers_.at(number);
  caller.name = theirs.name.empty() ? "a ddprund without a name" : theirs.name;
  caller.theirs = theirs;
  caller.theirs.name = caller.name;
  caller.place.reset();
  if (version != kMirrorVersion) {
    const Frames frames = caller.frames;
    const std::string name = caller.name;
    callers_.erase(number);
    return refuse(frames, name,
                  concat("it speaks version ", version, " of the mirror's protocol, and ",
                         options_.state().name, " version ", kMirrorVersion,
                         ": install the same ddprund on both"));
  }
  const auto self = shared_from_this();  // `met` may let go of it
  if (const auto met = options_.met) met(theirs);
  const auto found = callers_.find(number);
  if (found == callers_.end()) return;
  mirror::Hello hello;
  hello.state = options_.state();
  found->second.frames->send(mirror::encode(mirror::CalledMessage(hello)));
}

void MirrorDoor::let_mirror(std::uint64_t number) {
  const Caller caller = std::move(callers_.extract(number).mapped());
  const auto server = server_.lock();
  if (!server) {
    return refuse(caller.frames, caller.name, concat(options_.state().name, " stands by"));
  }
  last_refusal_.clear();
  server->adopt(caller.frames, caller.theirs);
}

void MirrorDoor::refuse(const Frames& frames, const std::string& name, const std::string& reason) {
  const std::string line = concat("refused ", name, ": ", reason);
  if (std::exchange(last_refusal_, line) != line) log_warning(line);
  frames->send(mirror::encode(mirror::CalledMessage(mirror::Refused{reason})));
  frames->close_when_sent(kRefusalLimit);
}

}  // namespace ddprun::ha
