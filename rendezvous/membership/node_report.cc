// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/node_report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <initializer_list>
#include <utility>

namespace ddprun::membership {
namespace {

namespace json = boost::json;

constexpr int kMaxCpus = 1 << 20;
constexpr int kMaxGpuIndex = 4096;
constexpr double kMaxNumber = 1e15;                 // bytes, segments, watts: more is nonsense
constexpr std::size_t kMaxInterfaceNameBytes = 32;  // the kernel's names have 15

double within(double value, double least, double most) {
  return std::isfinite(value) ? std::clamp(value, least, most) : least;
}

void put(json::object& out, const char* name, const std::optional<double>& value, double least,
         double most) {
  if (value) out[name] = within(*value, least, most);
}

void put(json::object& out, const char* name, const std::optional<std::uint64_t>& bytes) {
  if (bytes) out[name] = counter_value(*bytes);
}

std::optional<double> read_number(const JsonFields& in, const char* name, double least,
                                  double most) {
  if (!in.has(name)) return std::nullopt;
  return within(in.real(name), least, most);
}

std::optional<std::uint64_t> read_bytes(const JsonFields& in, const char* name) {
  if (!in.has(name)) return std::nullopt;
  return in.counter(name);
}

json::object interface_object(const InterfaceReport& report) {
  json::object out;
  out["name"] = line_text(report.name, kMaxInterfaceNameBytes);
  out["received_bytes_per_second"] = within(report.received_rate, 0, kMaxNumber);
  out["sent_bytes_per_second"] = within(report.sent_rate, 0, kMaxNumber);
  return out;
}

InterfaceReport read_interface(const JsonFields& in) {
  InterfaceReport report;
  report.name = std::string(line_text(in.text("name"), kMaxInterfaceNameBytes));
  report.received_rate = within(in.real("received_bytes_per_second"), 0, kMaxNumber);
  report.sent_rate = within(in.real("sent_bytes_per_second"), 0, kMaxNumber);
  return report;
}

json::object gpu_object(const GpuReport& report) {
  json::object out;
  out["gpu"] = std::clamp(report.index, 0, kMaxGpuIndex);
  put(out, "use", report.use, 0, 1);
  put(out, "memory_bytes", report.memory_bytes);
  put(out, "memory_used_bytes", report.memory_used_bytes);
  put(out, "watts", report.watts, 0, kMaxNumber);
  put(out, "celsius", report.celsius, -kMaxNumber, kMaxNumber);
  return out;
}

GpuReport read_gpu(const JsonFields& in) {
  GpuReport report;
  report.index = in.small("gpu", 0, kMaxGpuIndex);
  report.use = read_number(in, "use", 0, 1);
  report.memory_bytes = read_bytes(in, "memory_bytes");
  report.memory_used_bytes = read_bytes(in, "memory_used_bytes");
  report.watts = read_number(in, "watts", 0, kMaxNumber);
  report.celsius = read_number(in, "celsius", -kMaxNumber, kMaxNumber);
  return report;
}

}  // namespace

json::object node_report_object(const NodeReport& report) {
  json::object out;
  if (report.num_cpus) out["cpus"] = std::clamp(*report.num_cpus, 0, kMaxCpus);
  put(out, "cpu", report.cpu, 0, 1);
  put(out, "memory_bytes", report.memory_bytes);
  put(out, "memory_used_bytes", report.memory_used_bytes);
  put(out, "tcp_retransmits_per_second", report.retransmit_rate, 0, kMaxNumber);
  json::array interfaces, gpus;
  for (const InterfaceReport& each : report.interfaces) {
    if (interfaces.size() < kMaxReportedInterfaces) interfaces.push_back(interface_object(each));
  }
  for (const GpuReport& each : report.gpus) {
    if (gpus.size() < kMaxReportedGpus) gpus.push_back(gpu_object(each));
  }
  out["interfaces"] = std::move(interfaces);
  out["gpus"] = std::move(gpus);
  return out;
}

json::object shown_node_report(const NodeReport& report) {
  const auto complete = [](json::object& object, std::initializer_list<const char*> names) {
    for (const char* name : names) object.emplace(name, nullptr);
  };
  json::object object = node_report_object(report);
  double received = 0, sent = 0;
  for (const InterfaceReport& each : report.interfaces) {
    received += each.received_rate;
    sent += each.sent_rate;
  }
  if (!report.interfaces.empty()) {
    object["received_bytes_per_second"] = received;
    object["sent_bytes_per_second"] = sent;
  }
  complete(object, {"cpus", "cpu", "memory_bytes", "memory_used_bytes", "received_bytes_per_second",
                    "sent_bytes_per_second", "tcp_retransmits_per_second"});
  for (json::value& gpu : object.at("gpus").as_array()) {
    complete(gpu.as_object(), {"use", "memory_bytes", "memory_used_bytes", "watts", "celsius"});
  }
  return object;
}

NodeReport read_node_report(const JsonFields& in) {
  NodeReport report;
  if (in.has("cpus")) report.num_cpus = in.small("cpus", 0, kMaxCpus);
  report.cpu = read_number(in, "cpu", 0, 1);
  report.memory_bytes = read_bytes(in, "memory_bytes");
  report.memory_used_bytes = read_bytes(in, "memory_used_bytes");
  report.retransmit_rate = read_number(in, "tcp_retransmits_per_second", 0, kMaxNumber);
  for (const JsonFields& each : in.objects("interfaces", kMaxReportedInterfaces)) {
    report.interfaces.push_back(read_interface(each));
  }
  for (const JsonFields& each : in.objects("gpus", kMaxReportedGpus)) {
    report.gpus.push_back(read_gpu(each));
  }
  return report;
}

}  // namespace ddprun::membership
