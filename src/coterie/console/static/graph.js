import{b as a,c as b,d as c}from"./chunk-2.js";import"./chunk-3.js";export{c as clip,b as curve,a as default};
