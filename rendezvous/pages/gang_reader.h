// SPDX-License-Identifier: Apache-2.0
// Reads what the nodes of a gang print, from the begin to its end, over one page after the other.
// Pure: pages in, whole lines out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/gangs/gang_json.h"

namespace ddprun::pages {

class GangReader {
 public:
  struct Piece {
    std::size_t node = 0;  // in the order of the gang's parts
    bool is_err = false;
    std::string text;
  };

  // What the next page is asked with.
  const std::vector<gangs::OutputPlace>& places() const { return places_; }
  std::optional<std::uint64_t> seen() const { return seen_; }

  // Whole lines, and what is longer than kMostHeld; at the end of the gang all. Throws
  // Error(kProtocol), and nothing was taken.
  std::vector<Piece> take(const gangs::GangNews& news);
  // For who asks for no further page: what is held of lines that have no end yet, all of it.
  std::vector<Piece> take_rest();

  // The last page had output, whether or not a line of it was whole, or tells of nodes that nobody
  // asked for yet: at once there may be more.
  bool has_more() const { return has_more_; }

  // The gang has ended, and all that can be read was; what can't be read is in troubles().
  bool is_over() const { return is_over_; }
  const gangs::GangState& state() const { return state_; }
  const std::vector<std::string>& nodes() const { return nodes_; }
  // Of whom nothing could be read by the last page, and why; each once.
  std::vector<std::string> troubles() const;

  static constexpr std::size_t kMostHeld = std::size_t{64} << 10;

 private:
  struct Stream {
    std::string held;
  };
  // What one page has of a node, decoded.
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
  std::vector<Stream> out_, err_;           // likewise
  std::vector<std::string> troubles_;       // likewise; empty: none
  std::optional<std::uint64_t> seen_;
  gangs::GangState state_;
  bool has_more_ = true;
  bool is_over_ = false;
};

}  // namespace ddprun::pages
