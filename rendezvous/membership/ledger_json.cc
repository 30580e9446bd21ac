// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/ledger_json.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <utility>
#include <vector>

namespace ddprun::membership {

namespace json = boost::json;

json::object phase_seconds_object(const PhaseSeconds& seconds) {
  json::object object;
  object["rendezvous"] = seconds.rendezvous;
  object["spawn"] = seconds.spawn;
  object["first_step"] = seconds.first_step;
  object["running"] = seconds.running;
  object["redone"] = seconds.redone;
  object["detect"] = seconds.detect;
  object["stop"] = seconds.stop;
  return object;
}

json::object round_record_object(const RoundRecord& record) {
  json::object object;
  object["round"] = record.round;
  object["nodes"] = record.num_nodes;
  object["spares"] = record.num_spares;
  object["world_size"] = record.world_size;
  object["in_place"] = record.in_place;
  object["came"] = json::array(record.came.begin(), record.came.end());
  object["went"] = json::array(record.went.begin(), record.went.end());
  object["stragglers"] = json::array(record.stragglers.begin(), record.stragglers.end());
  object["cause"] = record.cause;
  object["first_failure"] = record.first_failure;
  object["victims"] = json::array(record.victims.begin(), record.victims.end());
  object["first_step"] = record.first_step;
  object["last_step"] = record.last_step;
  object["steps_redone"] = record.steps_redone;
  object["seconds"] = phase_seconds_object(record.seconds);
  return object;
}

std::string ledger_text(const Ledger& ledger, std::size_t max_bytes) {
  json::object object;
  const auto ettr = ledger.ettr();
  object["ettr"] = ettr ? json::value(*ettr) : json::value(nullptr);
  object["seconds"] = phase_seconds_object(ledger.total());
  object["rounds"] = json::array();
  std::size_t size = json::serialize(object).size();
  std::vector<std::string> texts;  // the last one first
  for (auto record = ledger.rounds().rbegin(); record != ledger.rounds().rend(); ++record) {
    std::string text = json::serialize(round_record_object(*record));
    size += text.size() + 1;  // and a comma
    if (size > max_bytes) break;
    texts.push_back(std::move(text));
  }
  std::string whole = json::serialize(object);
  whole.resize(whole.size() - 2);  // "]}"
  for (auto text = texts.rbegin(); text != texts.rend(); ++text) {
    whole += (text == texts.rbegin() ? "" : ",") + *text;
  }
  return whole + "]}";
}

}  // namespace ddprun::membership
