// SPDX-License-Identifier: Apache-2.0
// Where the other one of a pair calls, whether this side leads or not: it is told how this side is
// doing, and mirrors it where it asks for that and there is something to mirror
// (docs/ha-standby.md, "They meet"). io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/ha/mirror_server.h"
#include "rendezvous/ha/pair_state.h"
#include "rendezvous/ha/standby_patience.h"
#include "rendezvous/membership/frame_stream.h"

namespace ddprun::ha {

struct MirrorDoorOptions {
  std::function<PairState()> state;  // asked at the moment of each answer
  // Of each caller; called from the io context, before it has its answer.
  std::function<void(const PairState& theirs)> met = nullptr;
  std::chrono::milliseconds hello_limit{10'000};  // from its proof until it mirrors or is gone
  std::size_t max_callers = 8;  // that do not mirror yet; beyond, the oldest one is closed
};

// Held by shared_ptr, of which what is under way keeps a weak one.
class MirrorDoor : public std::enable_shared_from_this<MirrorDoor> {
 public:
  MirrorDoor(boost::asio::io_context& io, MirrorDoorOptions options);
  ~MirrorDoor();  // closes every connection that it has; no call follows
  MirrorDoor(const MirrorDoor&) = delete;
  MirrorDoor& operator=(const MirrorDoor&) = delete;

  // An upgraded stream of kMirrorPath whose peer has proved itself; `place` is let go of once it
  // has said hello, or has gone.
  void take(const std::shared_ptr<membership::FrameStream>& frames, std::shared_ptr<void> place);
  // Who takes in those that want to mirror, as long as it lives; null: nobody does, this side
  // stands by.
  void set_server(const std::shared_ptr<MirrorServer>& server);

 private:
  using Frames = std::shared_ptr<membership::FrameStream>;
  struct Caller {
    Frames frames;  // second owner: its operations
    std::shared_ptr<void> place;
    std::unique_ptr<boost::asio::steady_timer> timer;
    std::string name;  // empty: it has not said hello
    PairState theirs;
  };

  void received(std::uint64_t number, std::string_view text);
  void greet(std::uint64_t number, int version, const PairState& theirs);
  void let_mirror(std::uint64_t number);
  void drop(std::uint64_t number, const std::string& why);
  void refuse(const Frames& frames, const std::string& name, const std::string& reason);

  boost::asio::io_context& io_;
  const MirrorDoorOptions options_;
  std::weak_ptr<MirrorServer> server_;
  // Second owner: the server.
  const std::shared_ptr<StandbyPatience> patience_ = std::make_shared<StandbyPatience>();
  std::map<std::uint64_t, Caller> callers_;
  std::string last_drop_;  // why one went that had not said hello: said once, until one has
  std::uint64_t next_caller_ = 0;
  std::string last_refusal_;  // each is said once in a row
};

}  // namespace ddprun::ha
