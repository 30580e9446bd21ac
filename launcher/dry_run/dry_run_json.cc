// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/dry_run.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <limits>
#include <string_view>

#include "common/json.h"

#include "rendezvous/messages/json_fields.h"

namespace ddprun::launcher {
namespace {

namespace json = boost::json;

constexpr int kVersion = 1;  // changes when a field's meaning does

json::string text(std::string_view value) {
  return json::string(membership::clean_utf8(value, std::numeric_limits<std::size_t>::max()));
}

json::value whole_or_null(const std::string& value) {
  return value.empty() ? json::value(nullptr) : json::value(text(value));
}

json::array list(const std::vector<std::string>& values) {
  json::array result;
  result.reserve(values.size());
  for (const std::string& value : values) result.emplace_back(text(value));
  return result;
}

// Puts two objects: the known values, and those that are decided later.
void put(const std::vector<ForecastVariable>& variables, json::object& object) {
  json::object known, later;
  known.reserve(variables.size());
  for (const ForecastVariable& variable : variables) {
    (variable.is_later ? later : known)[variable.name] = text(variable.value);
  }
  object["environment"] = std::move(known);
  object["decided_later"] = std::move(later);
}

json::object to_object(const WorkerForecast& worker, const ForecastPlace* place) {
  json::object object;
  object["local_rank"] = worker.local_rank;
  object["global_rank"] = or_null(worker.global_rank);
  if (place != nullptr) {
    object["cpus"] = whole_or_null(place->cpus);
    object["is_bound"] = place->is_bound;
    object["gpu"] = whole_or_null(place->gpu);
  }
  object["command"] = list(worker.command);
  put(worker.environment, object);
  if (!worker.without.empty()) object["not_set"] = list(worker.without);
  object["log_files"] = list(worker.files);
  return object;
}

json::object to_object(const NodeDryRun& node) {
  json::object object;
  object["host"] = whole_or_null(node.host);
  object["is_here"] = node.is_here;
  object["is_spare"] = node.is_spare;
  object["node_rank"] = or_null(node.rank);
  object["num_workers"] = or_null(node.num_workers);
  object["first_global_rank"] = or_null(node.first_global_rank);
  if (!node.command.empty()) {
    object["start_command"] = list(node.command);
    object["ddprun_arguments"] = list(node.arguments);
  }
  json::array workers;
  for (std::size_t i = 0; i < node.workers.size(); ++i) {
    workers.push_back(
        to_object(node.workers[i], i < node.places.size() ? &node.places[i] : nullptr));
  }
  object["workers"] = std::move(workers);
  return object;
}

json::object limits_object(const DryRun& run) {
  json::object object;
  for (const auto& [option, value] : agent::shown_limits(run.config.worker_limits)) {
    auto& values = object.emplace(option, json::array()).first->value();
    values.as_array().emplace_back(text(value));
  }
  if (object.empty()) return object;
  object["required"] = run.config.worker_limits.required;
  const bool is_known = run.isolation.has_value();
  object["cgroup"] =
      is_known ? whole_or_null(run.isolation->place.directory) : json::value(nullptr);
  json::object unenforced;
  for (const auto& each :
       is_known ? run.isolation->unenforced : std::vector<agent::UnenforcedLimit>()) {
    unenforced[each.option] = text(each.why);
  }
  object["not_enforced"] = is_known ? json::value(std::move(unenforced)) : json::value(nullptr);
  return object;
}

}  // namespace

std::string to_json(const DryRun& run) {
  json::object object;
  object["dry_run"] = kVersion;
  json::object rendezvous;
  rendezvous["mode"] = run.mode;
  rendezvous["endpoint"] = text(run.endpoint);
  rendezvous["source"] = text(run.origin);
  rendezvous["served_by"] = text(run.served_by);
  object["rendezvous"] = std::move(rendezvous);
  object["job_id"] = text(run.job_id);
  object["min_nodes"] = run.config.min_nodes;
  object["max_nodes"] = run.config.max_nodes;
  object["spares"] = run.config.spares;
  object["world_size"] = or_null(run.world_size);
  object["assumed"] = list(run.assumed);
  object["preflight"] = whole_or_null(run.config.preflight);
  const DoctorGate gate = run.config.preflight_doctor;
  object["preflight_doctor"] = whole_or_null(gate == DoctorGate::kOff    ? std::string()
                                             : gate == DoctorGate::kFail ? "fail"
                                                                         : "warn");
  object["preload"] = run.config.preload_auto ? json::value("auto") : list(run.config.preload);
  object["preload_cache"] = whole_or_null(run.config.preload_cache);
  json::object limits;
  for (const auto& [option, value, is_time] : limits_of(run.config)) {
    limits[option] =
        value && !is_time ? json::value(static_cast<std::int64_t>(*value)) : or_null(value);
  }
  object["limits"] = std::move(limits);
  object["worker_limits"] = limits_object(run);
  object["log_directory"] = whole_or_null(run.run_directory);
  put(run.environment, object);
  object["not_inherited"] = list(run.removed);
  object["forwarded"] = list(run.forwarded);
  object["notes"] = list(run.notes);
  // Writes one node after the other: thousands of them at once would need much memory.
  std::string result = written_json(object);
  result.pop_back();
  result += ",\"nodes\":[";
  std::string_view separator;
  for (const NodeDryRun& node : run.nodes) {
    result.append(separator) += written_json(to_object(node));
    separator = ",";
  }
  return result += "]}\n";
}

}  // namespace ddprun::launcher
