// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/gang_reader.h"

#include <algorithm>
#include <utility>

#include "common/base64.h"
#include "common/error.h"
#include "common/log.h"

namespace ddprun::pages {

std::vector<GangReader::Piece> GangReader::take(const gangs::GangNews& news) {
  std::vector<Piece> pieces;
  const bool has_ended = news.state.phase == gangs::GangPhase::kEnded;
  // What this page was asked with knew of all nodes, and that the gang had ended. A change makes a
  // page at once, before its nodes have answered.
  const bool knew_all =
      has_ended && state_.phase == gangs::GangPhase::kEnded && seen_ == news.changes;
  bool has_output = false;
  for (Come& come : all_of(news)) {
    has_output |= !come.out.empty() || !come.err.empty();
    take_lines(come.node, false, come.out, false, pieces);
    take_lines(come.node, true, come.err, false, pieces);
    places_[come.node].out += come.out.size();
    places_[come.node].err += come.err.size();
    troubles_[come.node] = std::move(come.reason);
  }
  state_ = news.state;
  seen_ = news.changes;
  const std::size_t num_asked = places_.size();
  for (const gangs::GangPart& part : state_.parts) {
    if (std::ranges::count(nodes_, part.node) != 0) continue;
    if (nodes_.size() == gangs::kMaxAskedNodes) break;
    nodes_.push_back(part.node);
    places_.push_back({part.node, 0, 0});
    out_.emplace_back();
    err_.emplace_back();
    troubles_.emplace_back();
  }
  has_more_ = has_output || places_.size() > num_asked;
  is_over_ = has_ended && (knew_all || places_.empty()) && !has_output;
  if (is_over_) take_rest(pieces);
  return pieces;
}

// Before anything of it counts: the page may be asked for again.
std::vector<GangReader::Come> GangReader::all_of(const gangs::GangNews& news) const {
  std::vector<Come> all;
  for (const gangs::NodeOutput& output : news.output) {
    const auto place = std::ranges::find(places_, output.at.node, &gangs::OutputPlace::node);
    if (place == places_.end()) {
      throw Error(ErrorCode::kProtocol,
                  concat("a node that nobody asked for: ", one_line(output.at.node)));
    }
    auto out = from_base64(output.out), err = from_base64(output.err);
    if (!out || !err) throw Error(ErrorCode::kProtocol, "output that is no base64");
    if (output.out_next != place->out + out->size() ||
        output.err_next != place->err + err->size()) {
      throw Error(ErrorCode::kProtocol, "output that begins elsewhere than where it was asked for");
    }
    const auto node = static_cast<std::size_t>(place - places_.begin());
    all.push_back({node, *std::move(out), *std::move(err), output.reason});
  }
  return all;
}

std::vector<GangReader::Piece> GangReader::take_rest() {
  std::vector<Piece> pieces;
  take_rest(pieces);
  return pieces;
}

void GangReader::take_rest(std::vector<Piece>& pieces) {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    take_lines(node, false, "", true, pieces);
    take_lines(node, true, "", true, pieces);
  }
}

void GangReader::take_lines(std::size_t node, bool is_err, const std::string& bytes, bool to_end,
                            std::vector<Piece>& pieces) {
  std::string& held = (is_err ? err_ : out_)[node].held;
  held += bytes;
  std::size_t end = held.rfind('\n');
  end = end == std::string::npos ? 0 : end + 1;
  if (to_end || held.size() - end > kMostHeld) end = held.size();
  if (end == 0) return;
  pieces.push_back({node, is_err, held.substr(0, end)});
  held.erase(0, end);
}

std::vector<std::string> GangReader::troubles() const {
  std::vector<std::string> all;
  for (const std::string& trouble : troubles_) {
    if (!trouble.empty() && std::ranges::count(all, trouble) == 0) all.push_back(trouble);
  }
  return all;
}

}  // namespace ddprun::pages
