// SPDX-License-Identifier: Apache-2.0
// The queue of a ddprund as a client uses it (docs/nodes.md). Blocking, each call with a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/secret.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/security/wire.h"

namespace ddprun::pages {

// The caller gives all but the endpoint, the target, the method, the body and wants_refusals.
struct GangClientOptions : FetchOptions {
  std::vector<Endpoint> endpoints;  // of several: the one that leads
};

// Throws as fetch(), or Error(kInvalidArgument): the queue refuses. nullopt: it knows no such gang.
class GangClient {
 public:
  explicit GangClient(GangClientOptions options) : options_(std::move(options)) {}

  // Again and again with the same one: it is submitted once.
  gangs::GangNews submit(const gangs::GangSpec& spec) const;
  std::optional<gangs::GangNews> status(const std::string& id) const;
  std::vector<gangs::GangNews> list() const;
  std::optional<gangs::GangNews> cancel(const std::string& id) const;
  // As soon as there is more than `from` and `seen` have, within `wait`.
  std::optional<gangs::GangNews> logs(const std::string& id,
                                      const std::vector<gangs::OutputPlace>& from,
                                      std::optional<std::uint64_t> seen,
                                      std::chrono::milliseconds wait) const;

  // The message for a gang that was there, and isn't any more.
  static std::string forgotten_text(const std::string& id);

 private:
  Page ask(const std::string& method, const std::string& target, const std::string& body) const;
  Page ask_or_throw(const std::string& method, const std::string& target,
                    const std::string& body) const;
  std::optional<gangs::GangNews> ask_of(const std::string& id, const std::string& method,
                                        const std::string& target) const;

  const GangClientOptions options_;
};

// Reads what the nodes of a gang print from begin to end. Pure: pages in, whole lines out.
class GangReader {
 public:
  struct Piece {
    std::size_t node = 0;  // in the order of the gang's parts
    bool is_err = false;
    std::string text;
  };

  // The next page is asked for with these.
  const std::vector<gangs::OutputPlace>& places() const { return places_; }
  std::optional<std::uint64_t> seen() const { return seen_; }

  // Whole lines, and what is longer than kMostHeld; at the end all. Error(kProtocol): took nothing.
  std::vector<Piece> take(const gangs::GangNews& news);
  // For who asks for no further page: what is held of lines that have no end yet, all of it.
  std::vector<Piece> take_rest();

  // The last page had output, or tells of nodes that nobody asked yet: at once there may be more.
  bool has_more() const { return has_more_; }

  // The gang has ended, and all that can be read was; what can't be read is in troubles().
  bool is_over() const { return is_over_; }
  const gangs::GangState& state() const { return state_; }
  const std::vector<std::string>& nodes() const { return nodes_; }
  // The nodes of which the last page could read nothing, and why; each once.
  std::vector<std::string> troubles() const;

  static constexpr std::size_t kMostHeld = std::size_t{64} << 10;

 private:
  // A node's part of one page, decoded.
  struct Come {
    std::size_t node = 0;
    std::string out, err, reason;
  };
  std::vector<Come> all_of(const gangs::GangNews& news) const;
  void take_lines(std::size_t node, bool is_err, const std::string& bytes, bool to_end,
                  std::vector<Piece>& pieces);
  void take_rest(std::vector<Piece>& pieces);

  std::vector<std::string> nodes_;
  std::vector<gangs::OutputPlace> places_;  // by node
  std::vector<std::string> out_, err_;      // likewise; held of lines that have no end yet
  std::vector<std::string> troubles_;       // likewise; empty: none
  std::optional<std::uint64_t> seen_;
  gangs::GangState state_;
  bool has_more_ = true;
  bool is_over_ = false;
};

}  // namespace ddprun::pages
