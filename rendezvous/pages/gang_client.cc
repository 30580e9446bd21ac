// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/gang_client.h"

#include <algorithm>
#include <utility>

#include "common/byte_text.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun::pages {
namespace {

constexpr unsigned kNotFound = 404, kTooMany = 429;

std::string first_line(const Page& page) { return page.body.substr(0, page.body.find('\n')); }

template <typename Parse>
auto parsed(const Page& page, Parse parse) {
  try {
    return parse(page.body);
  } catch (const Error& error) {
    throw foreign_answer(page.from, error.what());
  }
}

[[noreturn]] void throw_refusal(const Page& page) {
  std::string why = first_line(page);
  const bool is_none = page.status == kNotFound;
  const bool is_without_queue = is_none && why.starts_with("try /");
  if (is_none && !is_without_queue) {
    throw foreign_answer(page.from, concat("HTTP 404, ", quoted_begin(why)));
  }
  if (is_without_queue) why = "it has no queue for standing agents";
  throw Error(page.status == kTooMany ? ErrorCode::kResourceExhausted : ErrorCode::kInvalidArgument,
              concat("the ddprund refused: ", one_line(why)));
}

}  // namespace

Page GangClient::ask(const std::string& method, const std::string& target,
                     const std::string& body) const {
  FetchOptions options = static_cast<const FetchOptions&>(options_);
  options.target = target;
  options.method = method;
  options.body = body;
  options.wants_refusals = true;
  return ask_leader(std::move(options), options_.endpoints);
}

Page GangClient::ask_or_throw(const std::string& method, const std::string& target,
                              const std::string& body) const {
  Page page = ask(method, target, body);
  if (page.status >= 300) throw_refusal(page);
  return page;
}

std::optional<gangs::GangNews> GangClient::ask_of(const std::string& id, const std::string& method,
                                                  const std::string& target) const {
  const Page page = ask(method, target, "");
  if (page.status < 300) return parsed(page, gangs::parse_gang_page);
  if (page.status == kNotFound && first_line(page) == gangs::no_gang_text(id)) return std::nullopt;
  throw_refusal(page);
}

gangs::GangNews GangClient::submit(const gangs::GangSpec& spec) const {
  return parsed(ask_or_throw("POST", gangs::kGangsPath, gangs::gang_to_json(spec)),
                gangs::parse_gang_page);
}

std::optional<gangs::GangNews> GangClient::status(const std::string& id) const {
  return ask_of(id, "GET", concat(gangs::kGangsPath, "/", id));
}

std::vector<gangs::GangNews> GangClient::list() const {
  return parsed(ask_or_throw("GET", gangs::kGangsPath, ""), gangs::parse_gangs_page);
}

std::optional<gangs::GangNews> GangClient::cancel(const std::string& id) const {
  return ask_of(id, "DELETE", concat(gangs::kGangsPath, "/", id));
}

std::optional<gangs::GangNews> GangClient::logs(const std::string& id,
                                                const std::vector<gangs::OutputPlace>& from,
                                                std::optional<std::uint64_t> seen,
                                                std::chrono::milliseconds wait) const {
  return ask_of(id, "GET", gangs::logs_target(id, from, seen, wait.count()));
}

std::string GangClient::forgotten_text(const std::string& id) {
  return concat("the ddprund no longer knows job nodes:", id,
                ": it began anew without what it had kept (--state-dir), and its agents end the "
                "job's processes; or the job ended longer ago than --keep-finished");
}

std::vector<GangReader::Piece> GangReader::take(const gangs::GangNews& news) {
  std::vector<Piece> pieces;
  const bool has_ended = news.state.phase == gangs::GangPhase::kEnded;
  // The reader already knew the end and all nodes. Else nodes may have more output than this page
  // has.
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

// Decodes the whole page before any of it is used: after an error the caller may ask for it again.
std::vector<GangReader::Come> GangReader::all_of(const gangs::GangNews& news) const {
  std::vector<Come> all;
  for (const gangs::NodeOutput& output : news.output) {
    const auto place = std::ranges::find(places_, output.at.node, &gangs::OutputPlace::node);
    if (place == places_.end()) {
      throw_error(ErrorCode::kProtocol, "a node that nobody asked for: ", one_line(output.at.node));
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
  std::string& held = (is_err ? err_ : out_)[node];
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
