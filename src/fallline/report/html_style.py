"""How the page looks: calm, light and dark, wide and narrow. And the small script that shows values under the pointer."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root{color-scheme:light dark;
--bg:#f7f8fa;--panel:#fff;--ink:#1b2130;--soft:#5c6575;--line:#e4e7ec;--code:#f3f5f8;
--loss:#2b66d9;--norm:#0f8a80;--clip:#c77700;--rate:#7a4fd0;--scale:#56657c;--memory:#4b7f2c;
--data:#c77700;--forward:#2b66d9;--backward:#7a4fd0;--step:#0f8a80;--other:#9aa4b5;
--error:#c92a2a;--warning:#b35c00;--info:#2b66d9;--good:#1c7c43}
@media (prefers-color-scheme:dark){:root{
--bg:#0f1218;--panel:#171b23;--ink:#e6e9f0;--soft:#9aa4b5;--line:#2a303c;--code:#11151c;
--loss:#6ea2ff;--norm:#3cc7b9;--clip:#f0ad4e;--rate:#b195ff;--scale:#a3b1c9;--memory:#8fcf6a;
--data:#f0ad4e;--forward:#6ea2ff;--backward:#b195ff;--step:#3cc7b9;--other:#6b7688;
--error:#ff7b7b;--warning:#ffb266;--info:#6ea2ff;--good:#69d394}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1180px;margin:0 auto;padding:28px 24px 56px}
header{display:flex;flex-wrap:wrap;gap:6px 16px;align-items:baseline;margin-bottom:4px}
h1{font-size:24px;line-height:1.25;margin:0;overflow-wrap:anywhere;letter-spacing:-.01em}
h2{font-size:17px;margin:36px 0 12px;letter-spacing:-.005em}
summary{font-size:17px;font-weight:700;margin:12px 0;letter-spacing:-.005em;cursor:pointer}
h3{font-size:14px;margin:0;font-weight:600}
p{margin:0}
.brand{font-size:13px;font-weight:600;color:var(--soft);letter-spacing:.02em;margin:0 0 6px}
.facts{color:var(--soft);font-size:13.5px;overflow-wrap:anywhere}
.verdict{display:flex;gap:12px;align-items:center;margin:20px 0 0;padding:14px 18px;border-radius:10px;background:var(--panel);
border:1px solid var(--line);border-left:4px solid var(--c)}
.verdict strong{color:var(--c)}
.verdict span{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:1px;margin:14px 0 0;background:var(--line);
border:1px solid var(--line);border-radius:10px;overflow:hidden}
.tile{background:var(--panel);padding:12px 16px}
.tile dt{font-size:12.5px;color:var(--soft)}
.tile dd{margin:2px 0 0;font-size:19px;font-weight:600;letter-spacing:-.01em;overflow-wrap:anywhere}
.tile dd small{display:block;font-size:12.5px;font-weight:400;color:var(--soft);letter-spacing:0}
.finding{background:var(--panel);border:1px solid var(--line);border-radius:10px;margin:0 0 14px;overflow:hidden;border-left:4px solid var(--c)}
.finding>div{padding:14px 18px}
.finding h3{font-size:15px;display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline;font-weight:500}
.finding .code{color:var(--c);font-weight:700}
.finding .name{color:var(--soft);font-weight:400;font-size:13.5px}
.finding .message{margin-top:4px;overflow-wrap:anywhere}
.place{color:var(--soft);font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere;margin-top:4px}
pre{margin:0;padding:10px 0;background:var(--code);border-block:1px solid var(--line);overflow-x:auto;
font:12.5px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre code{display:block;min-width:max-content;font:inherit}
pre span{display:block;padding:0 18px}
pre span i{display:inline-block;width:3.2em;margin-right:1.2em;text-align:right;color:var(--soft);font-style:normal;user-select:none}
pre span.hit{background:color-mix(in srgb,var(--c) 13%,transparent);box-shadow:inset 3px 0 var(--c)}
.evidence{display:flex;flex-wrap:wrap;gap:4px 22px;margin:10px 0 0;font-size:13.5px}
.evidence div{display:flex;gap:6px;min-width:0}
.evidence dt{color:var(--soft)}
.evidence dd{margin:0;overflow-wrap:anywhere;min-width:0}
.advice{margin-top:10px;font-size:14px}
.advice b{font-weight:600}
.advice code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--code);padding:1px 4px;border-radius:4px;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:14px}
.chart{margin:0;background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:14px 16px 10px;min-width:0}
.charts .wide{grid-column:1/-1}
.charts>.chart:not(.wide):nth-child(odd):last-child,.charts>.chart:not(.wide):nth-child(odd):has(+.wide){grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:4px 16px;align-items:baseline;margin-bottom:10px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--soft);align-items:center}
.legend span{display:inline-flex;gap:6px;align-items:center}
.key{width:14px;height:0;border-top:3px solid var(--c);border-radius:2px}
.key.dashed{border-top-style:dashed;border-top-width:2px}
.key.zero{width:12px;height:12px;border:1px solid var(--line);background:rgba(128,128,128,.16);border-radius:2px}
.ramp{width:92px;height:10px;border-radius:3px;background:linear-gradient(90deg,#26285c,#2d5394,#2d84a3,#48b296,#98d677,#f6ec78)}
.plot{display:grid;grid-template-columns:54px minmax(0,1fr);grid-template-rows:190px 22px}
.canvas{position:relative;min-width:0}
.canvas svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.y-axis{position:relative;font-size:11.5px;color:var(--soft)}
.y-axis span{position:absolute;right:8px;transform:translateY(-50%);white-space:nowrap}
.x-axis{grid-column:2;position:relative;font-size:11.5px;color:var(--soft)}
.x-axis span{position:absolute;top:4px;transform:translateX(-50%);white-space:nowrap}
.x-axis .first{transform:none}.x-axis .last{transform:translateX(-100%)}
.x-axis em{display:none}
.grid{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke;fill:none}
.line{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
.line.faint{opacity:.32;stroke-width:1}
.line.dashed{stroke-dasharray:5 4}
.area{opacity:.85}
.mark{position:absolute;top:0;bottom:0;width:0;border-left:1.5px dashed var(--c)}
.mark b{font-style:normal;position:absolute;z-index:1;left:4px;font-size:11px;font-weight:600;color:var(--c);background:var(--panel);padding:0 3px;border-radius:3px;white-space:nowrap}
.mark b.left{left:auto;right:4px}
.lost{position:absolute;bottom:0;width:2px;height:10px;background:var(--error);transform:translateX(-1px)}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--soft);opacity:.6;pointer-events:none}
.tip{position:absolute;z-index:3;top:4px;max-width:min(260px,90%);background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:5px 9px;font-size:12px;
line-height:1.45;pointer-events:none;box-shadow:0 4px 14px rgba(0,0,0,.12);white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.tip b{font-weight:600}
.note{font-size:12.5px;color:var(--soft);margin-top:6px}
.map{display:grid;grid-template-columns:minmax(90px,24%) minmax(0,1fr);grid-template-rows:auto 22px}
.map .names{display:grid;grid-template-rows:repeat(var(--rows),minmax(0,1fr));height:clamp(120px,calc(var(--rows)*15px),600px);font-size:11.5px;color:var(--soft);padding-right:10px}
.map .names span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;direction:rtl;text-align:right;line-height:1;align-self:center}
.map img{display:block;width:100%;height:clamp(120px,calc(var(--rows)*15px),600px);image-rendering:pixelated;border-radius:3px}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden;gap:2px}
.bar i{display:block;min-width:2px;background:var(--c)}
.shares{display:flex;flex-wrap:wrap;gap:4px 20px;margin-top:10px;font-size:13.5px}
.shares span{display:inline-flex;gap:7px;align-items:center}
.shares i{width:10px;height:10px;border-radius:3px;background:var(--c)}
.shares b{font-weight:600}
.scroll{overflow-x:auto;background:var(--panel);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:right;padding:8px 16px;border-top:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
th{color:var(--soft);font-weight:500;border-top:0}
td .slow{color:var(--warning);font-weight:600}
footer{margin-top:40px;color:var(--soft);font-size:12.5px}
@media (max-width:560px){main{padding:20px 14px 40px}h1{font-size:20px}.chart{padding:12px 12px 8px}.plot{grid-template-columns:44px minmax(0,1fr);grid-template-rows:170px 22px}
.tile{padding:10px 12px}.tiles{grid-template-columns:repeat(2,1fr)}.tile dd{font-size:17px}.tile:last-child:nth-child(odd){grid-column:1/-1}.x-axis.named span:not(.first):not(.last){display:none}.x-axis.named span{max-width:48%;overflow:hidden;text-overflow:ellipsis}.finding>div{padding:12px 14px}pre span{padding:0 14px}pre span i{width:2.4em;margin-right:.9em}
.map{grid-template-columns:96px minmax(0,1fr)}.verdict{padding:12px 14px;flex-wrap:wrap;gap:2px 12px}th,td{padding:7px 12px}}
@media print{body{background:#fff}.chart,.finding{break-inside:avoid}}
"""

# Optional: without it every chart is complete, only the value under the pointer is missing.
SCRIPT = r"""
"use strict";
const short=v=>v===null?"not finite":Math.abs(v)>=1e6||(v!==0&&Math.abs(v)<1e-4)?v.toExponential(2):String(+v.toPrecision(4));
const place=(tip,box,x)=>{tip.hidden=false;const w=tip.offsetWidth;tip.style.left=Math.max(0,Math.min(box.width-w,x+12+w>box.width?x-w-12:x+12))+"px"};
const text=(node,parts)=>{node.replaceChildren();parts.forEach((p,k)=>{if(k)node.append(document.createElement("br"));
if(p.c){const b=document.createElement("b");b.style.color="var(--"+p.c+")";b.textContent=p.v;node.append(p.n+" ",b)}else node.append(p.n)})};
for(const chart of document.querySelectorAll("[data-chart]")){
 const d=JSON.parse(chart.dataset.chart),canvas=chart.querySelector(".canvas"),tip=chart.querySelector(".tip"),cursor=chart.querySelector(".cursor");
 canvas.addEventListener("pointermove",e=>{const box=canvas.getBoundingClientRect(),share=(e.clientX-box.left)/box.width,
  x=d.x[0]+share*(d.x[1]-d.x[0]);let near=null;const parts=[];
  for(const l of d.l){let best=null;for(const p of l.p)if(best===null||Math.abs(p[0]-x)<Math.abs(best[0]-x))best=p;
   if(best){near=near===null?best[0]:near;parts.push({n:l.n,c:l.c,v:short(best[1])+(best[1]===null?"":d.u)})}}
  if(near===null)return;
  parts.unshift({n:d.xl.length?(d.xl[Math.round(near)]||""):d.xn+" "+near.toLocaleString("en")});
  text(tip,parts);cursor.hidden=false;cursor.style.left=100*(near-d.x[0])/(d.x[1]-d.x[0])+"%";place(tip,box,e.clientX-box.left)});
 canvas.addEventListener("pointerleave",()=>{tip.hidden=true;cursor.hidden=true})}
for(const canvas of document.querySelectorAll("[data-map]")){
 const d=JSON.parse(canvas.dataset.map),tip=canvas.querySelector(".tip"),img=canvas.querySelector("img");
 canvas.addEventListener("pointermove",e=>{const box=img.getBoundingClientRect(),
  r=Math.min(d.names.length-1,Math.max(0,Math.floor((e.clientY-box.top)/box.height*d.names.length))),
  c=Math.min(d.updates.length-1,Math.max(0,Math.floor((e.clientX-box.left)/box.width*d.updates.length))),v=d.rows[r][c];
  text(tip,[{n:d.names[r]},{n:"update "+d.updates[c].toLocaleString("en")},{n:v===null?"no gradient":v==="0"?"exactly zero":v==="!"?"not finite":"norm "+short(10**v)}]);
  place(tip,box,e.clientX-box.left);tip.style.top=Math.min(box.height-58,Math.max(0,e.clientY-box.top-20))+"px"});
 canvas.addEventListener("pointerleave",()=>{tip.hidden=true})}
"""
