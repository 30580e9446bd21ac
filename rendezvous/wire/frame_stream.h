// SPDX-License-Identifier: Apache-2.0
// One open WebSocket of the control protocol, for either side. It receives text frames (control
// messages) and binary ones (a store proxy's). It sends such frames from a bounded queue, and
// pings. I/O thread only.
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

// Owned by shared_ptr. An operation under way is an owner, too, so that queued frames can leave
// after the first owner has dropped the stream.
class FrameStream : public std::enable_shared_from_this<FrameStream> {
 public:
  using Upgraded = std::function<void(boost::system::error_code)>;

  // Called from the I/O context, never from inside a call of this class, and not after close() or
  // close_when_sent().
  struct Handlers {
    std::function<void(std::string_view text)> frame;
    std::function<void(std::string_view bytes)> binary;  // empty: a binary frame is an error
    std::function<void(std::string_view payload)> ping;  // the pong is sent automatically
    std::function<void(std::string_view payload)> pong;
    std::function<void(const std::string& reason)> ended;  // once, after the connection's close
  };

  struct Limits {
    std::size_t max_message_bytes = std::size_t{1} << 20;
    std::size_t max_queued_bytes = std::size_t{4} << 20;  // else ended("… does not read")
  };

  FrameStream(security::Wire wire, Limits limits);
  ~FrameStream();

  security::Wire& wire();
  // One of these two is called before start(). This object must live until `done` is called.
  // `response` gets the other side's answer, also a refusal. `authorization` is that header's
  // value; empty: no such header.
  void async_handshake(http::Response& response, const std::string& host, const std::string& path,
                       const std::string& authorization, Upgraded done);
  // Accepts the upgrade that `request`, already read, asks for. The answer also has `fields`.
  void async_accept(const http::Request& request, const http::Fields& fields, Upgraded done);

  // Begins to read. If it was started before, the new handlers replace the old ones from the next
  // frame on.
  void start(Handlers handlers);
  // Lowers the limit of messages' bytes from the next message on, while the peer isn't
  // authenticated.
  void limit_messages(std::size_t max_bytes);
  // Restores the limit in Limits.
  void lift_limit();
  void send(std::string frame);
  void send_binary(std::string frame);
  // Does nothing while an earlier ping has not left yet.
  void ping(const std::string& payload);
  // Sends an additional pong, at most 125 bytes. Also does nothing while an earlier one has not
  // left.
  void pong(const std::string& payload);

  bool is_closed() const { return closed_; }
  bool has_sent_all() const { return outgoing_.empty(); }  // to the system
  void close_when_sent(std::chrono::milliseconds timeout);
  void close();

 private:
  struct Beast;  // only one file needs Beast's slow headers
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
  std::deque<Frame> outgoing_;  // the first is being written
  std::size_t outgoing_bytes_ = 0;
  std::shared_ptr<const Handlers> handlers_;  // shared with a call under way
  bool started_ = false;
  bool pinging_ = false;
  bool writing_ = false;
  bool closing_ = false;  // close_when_sent() was called
  bool closed_ = false;
};

// Returns "the peer closed the connection", "the peer reset the connection", …
std::string describe_end(const boost::system::error_code& error);

// About the error of async_handshake(). is_declined(): the other side answered, but not with the
// upgrade. is_dropped(): it ended the connection without an answer.
bool is_declined(const boost::system::error_code& error);
bool is_dropped(const boost::system::error_code& error);

}  // namespace ddprun::membership
