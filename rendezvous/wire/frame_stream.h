// SPDX-License-Identifier: Apache-2.0
// One open WebSocket of the control protocol, either side. Text frames (control messages) and
// binary ones (a store proxy's) come in; a bounded queue of them and pings go out. io thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/http/exchange.h"
#include "rendezvous/security/wire.h"

namespace ddprun::membership {

// Held by shared_ptr: the second owner is the operation under way, so that what is queued can leave
// after the first owner has let go.
class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  using Upgraded = std::function<void(boost::system::error_code)>;

  // Called from the io context, never from inside a call of this class, and not after close() or
  // close_when_sent().
  struct Handlers {
    std::function<void(std::string_view text)> frame;
    std::function<void(std::string_view bytes)> binary;  // empty: a binary frame ends it
    std::function<void(std::string_view payload)> ping;  // the peer pinged; the pong is sent
    std::function<void(std::string_view payload)> pong;
    std::function<void(const std::string& reason)> ended;  // once; the connection is closed
  };

  struct Limits {
    std::size_t max_message_bytes = std::size_t{1} << 20;
    std::size_t max_queued_bytes = std::size_t{4} << 20;  // beyond: ended("… does not read")
  };

  FrameStream(security::Wire wire, Limits limits);
  ~FrameStream();

  security::Wire& wire();
  // One of the two comes before start(); this object must live until `done` is called.
  // `response`: what the other side answered, also where it refuses. `authorization`: that header;
  // empty: none.
  void async_handshake(http::Response& response, const std::string& host, const std::string& path,
                       const std::string& authorization, Upgraded done);
  // `request` has been read. The answer has `fields`, too.
  void async_accept(const http::Request& request, const http::Fields& fields, Upgraded done);

  // If it was started before, the new caller takes over, from the next frame on.
  void start(Handlers handlers);
  // For each message from the next on: fewer bytes than in Limits, as long as the peer has not said
  // who it is.
  void limit_messages(std::size_t max_bytes);
  // Limits' again.
  void lift_limit();
  void send(std::string frame);
  void send_binary(std::string frame);
  // Does nothing while an earlier ping has not left yet.
  void ping(const std::string& payload);
  // A pong that answers no ping by itself; likewise. At most 125 bytes.
  void pong(const std::string& payload);

  bool is_closed() const { return closed_; }
  bool has_sent_all() const { return outgoing_.empty(); }  // the system has it
  void close_when_sent(std::chrono::milliseconds timeout);
  void close();

 private:
  struct Beast;  // its stream is in one file alone: no other takes longer to compile
  struct Frame {
    std::string bytes;
    bool is_binary = false;
  };

  void read_next();
  void queue(Frame frame);
  void write_next();
  bool may_ping();
  Upgraded pinged();
  void end(const std::string& reason);

  const Limits limits_;
  const std::unique_ptr<Beast> beast_;
  std::deque<Frame> outgoing_;  // the first one is being written
  std::size_t outgoing_bytes_ = 0;
  std::shared_ptr<const Handlers> handlers_;  // second owner: the call that is under way
  bool started_ = false;
  bool pinging_ = false;
  bool writing_ = false;
  bool closing_ = false;  // close_when_sent() was called
  bool closed_ = false;
};

// "the peer closed the connection", "connection reset", …
std::string describe_end(const boost::system::error_code& error);

// After async_handshake(). is_declined(): the other side did not answer with the upgrade.
// is_dropped(): it ended the connection without an answer.
bool is_declined(const boost::system::error_code& error);
bool is_dropped(const boost::system::error_code& error);

}  // namespace ddprun::membership
